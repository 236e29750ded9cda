"""Attention by installed libraries.

`flash-attn`: flash_attn_varlen_func over a paged cache. `flashinfer`: BatchPrefillWithPagedKVCacheWrapper.
Both are called as their documentation has it; neither has run here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tidemill_engine.step import int_array

if TYPE_CHECKING:
    from tidemill_engine.models.device_llama import Attend, Caches
    from tidemill_engine.runner.gpu.attention import PlannedAttention, Sequences
    from tidemill_engine.step import IntArray
    from tidemill_kernels.paged_attention.launch import HeadShape

FLASH_BLOCK_SIZE = 256
"""flash-attn reads paged caches whose blocks hold a multiple of this many tokens (its README, 2.5)."""


@dataclass(frozen=True, kw_only=True)
class _FlashStep:
    """One call per layer: what it wants of the host are lengths and the largest of them."""

    scale: float
    seq_lens: IntArray
    max_new: int
    max_len: int

    @property
    def arrays(self) -> Sequence[IntArray]:
        return [_running(self.seq_lens)]

    def bind(self, sequences: Sequences, there: Sequence[torch.Tensor]) -> Attend:
        from flash_attn import flash_attn_varlen_func  # noqa: PLC0415 - optional

        def attend(query: torch.Tensor, caches: Caches) -> torch.Tensor:
            attended: torch.Tensor = flash_attn_varlen_func(
                query,
                caches.keys,
                caches.values,
                cu_seqlens_q=sequences.query_start_loc,
                cu_seqlens_k=there[0],
                max_seqlen_q=self.max_new,
                max_seqlen_k=self.max_len,
                softmax_scale=self.scale,
                causal=True,
                block_table=sequences.block_table,
            )
            return attended

        return attend


class FlashAttention:
    """The package flash-attn."""

    can_capture = True

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def plan(self, query_lens: IntArray, seq_lens: IntArray, num_decodes: int) -> PlannedAttention:  # noqa: ARG002
        """Lay out a step; decodes are short chunks."""
        return _FlashStep(
            scale=self._scale,
            seq_lens=seq_lens,
            max_new=int(query_lens.max(initial=0)),
            max_len=int(seq_lens.max(initial=0)),
        )

    def decode(self, size: int, longest: int, device: torch.device) -> Callable[[Sequences], Attend]:  # noqa: ARG002
        """Lay out decodes; the running sums of lengths are computed on the device, within the graph."""

        def bind(sequences: Sequences) -> Attend:
            step = _FlashStep(scale=self._scale, seq_lens=int_array(), max_new=1, max_len=longest)
            ends = torch.cumsum(sequences.seq_lens, 0, dtype=torch.int32)
            return step.bind(sequences, [torch.nn.functional.pad(ends, (1, 0))])

        return bind


WORKSPACE_BYTES = 128 << 20
"""What flashinfer's documentation gives its wrappers."""
_WRAPPERS = 3
"""A wrapper's plan lies in pinned memory that the device may read late: more than steps are in flight."""


@dataclass(frozen=True, kw_only=True)
class _InferStep:
    """A step as flashinfer counts it: running sums of new tokens and of blocks, and last blocks' tokens."""

    owner: FlashInfer
    starts: IntArray
    block_starts: IntArray
    last_lens: IntArray

    @property
    def arrays(self) -> Sequence[IntArray]:
        counts = np.diff(self.block_starts)
        owners = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(self.block_starts[-1]) - np.repeat(self.block_starts[:-1], counts)
        return [int_array(owners), int_array(places)]

    def bind(self, sequences: Sequences, there: Sequence[torch.Tensor]) -> Attend:
        wrapper = self.owner.wrapper(sequences.block_table.device)
        indices = sequences.block_table[there[0].long(), there[1].long()]
        is_planned = False

        def attend(query: torch.Tensor, caches: Caches) -> torch.Tensor:
            nonlocal is_planned
            if not is_planned:
                wrapper.plan(
                    torch.from_numpy(self.starts),
                    torch.from_numpy(self.block_starts),
                    indices,
                    torch.from_numpy(self.last_lens),
                    self.owner.heads.num_heads,
                    self.owner.heads.num_kv_heads,
                    self.owner.heads.head_dim,
                    self.owner.block_size,
                    causal=True,
                    sm_scale=self.owner.scale,
                    q_data_type=query.dtype,
                )
                is_planned = True
            attended: torch.Tensor = wrapper.run(query, (caches.keys, caches.values))
            return attended

        return attend


class FlashInfer:
    """The package flashinfer; its plans are made on the host, so no graph is captured."""

    can_capture = False

    def __init__(self, heads: HeadShape, block_size: int, scale: float) -> None:
        self.heads = heads
        self.block_size = block_size
        self.scale = scale
        self._wrappers: itertools.cycle[Any] | None = None

    def wrapper(self, device: torch.device) -> Any:
        """Return the next wrapper in turn."""
        if self._wrappers is None:
            from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # noqa: PLC0415 - optional

            workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
            made = [BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD") for _ in range(_WRAPPERS)]
            self._wrappers = itertools.cycle(made)
        return next(self._wrappers)

    def plan(self, query_lens: IntArray, seq_lens: IntArray, num_decodes: int) -> PlannedAttention:  # noqa: ARG002
        """Lay out a step; decodes are short chunks."""
        num_blocks = -(-seq_lens // self.block_size)
        return _InferStep(
            owner=self,
            starts=_running(query_lens),
            block_starts=_running(num_blocks),
            last_lens=int_array(seq_lens - (num_blocks - 1) * self.block_size),
        )

    def decode(self, size: int, longest: int, device: torch.device) -> Callable[[Sequences], Attend]:
        """Refuse: nothing is captured."""
        raise NotImplementedError(f"flashinfer's {size} decodes of up to {longest} tokens on {device}")


def _running(counts: IntArray) -> IntArray:
    """Return the running sums, from 0."""
    return int_array(np.concatenate([[0], np.cumsum(counts)]))
