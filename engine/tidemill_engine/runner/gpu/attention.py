"""Which library computes attention on a device, and how a step is laid out for it.

`tidemill` is our own kernel. `flash-attn` is the package of that name (flash_attn_varlen_func over a paged
cache). A backend plans a step on the host, names what it needs on the device, and attends layer by layer.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.step import int_array
from tidemill_kernels.paged_attention.launch import AttentionLaunch, Gpu, HeadShape, plan_attention
from tidemill_kernels.paged_attention.triton_kernel import AttentionOptions, PagedBatch, paged_attention

if TYPE_CHECKING:
    from tidemill_engine.config import AttentionBackendName
    from tidemill_engine.models.device_llama import Attend, Caches
    from tidemill_engine.step import IntArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """A step's sequences on the device, as every backend needs them.

    block_table: `[n, max_blocks]` int32; seq_lens: `[n]` int32, new tokens included; query_start_loc:
    `[n + 1]` int32.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor


class PlannedAttention(Protocol):
    """A step laid out: `arrays` are wanted on the device, and come back to `bind`."""

    @property
    def arrays(self) -> Sequence[IntArray]:
        """Return what the backend wants of the host's plan on the device."""

    def bind(self, sequences: Sequences, there: Sequence[torch.Tensor]) -> Attend:
        """Return how each layer of the step attends."""


class AttentionBackend(Protocol):
    """One library."""

    def plan(self, query_lens: IntArray, seq_lens: IntArray, num_decodes: int) -> PlannedAttention:
        """Lay out a step whose first `num_decodes` sequences have one new token each."""

    def decode(self, size: int, longest: int, device: torch.device) -> Callable[[Sequences], Attend]:
        """Lay out every decode step of so many sequences, none over `longest`, for a captured graph."""


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    """Launches of our kernel over some leading tokens of a step, in the order in which they must run."""

    launches: tuple[tuple[int | None, AttentionLaunch], ...]
    options: AttentionOptions

    @property
    def arrays(self) -> Sequence[IntArray]:
        return [array for _, launch in self.launches for array in (launch.tile_sequences, launch.tile_starts)]

    def bind(self, sequences: Sequences, there: Sequence[torch.Tensor]) -> Attend:
        batches = [
            PagedBatch(
                block_table=sequences.block_table,
                seq_lens=sequences.seq_lens,
                query_start_loc=sequences.query_start_loc,
                tile_sequences=there[2 * index],
                tile_starts=there[2 * index + 1],
            )
            for index in range(len(self.launches))
        ]

        def attend(query: torch.Tensor, caches: Caches) -> torch.Tensor:
            out = torch.empty_like(query)
            for (count, launch), batch in zip(self.launches, batches, strict=True):
                paged_attention(query[:count], caches, batch, launch, self.options, out=out[:count])
            return out

        return attend


class TidemillAttention:
    """Our own kernel."""

    def __init__(self, heads: HeadShape, options: AttentionOptions, gpu: Gpu) -> None:
        self._heads = heads
        self._options = options
        self._gpu = gpu

    def plan(self, query_lens: IntArray, seq_lens: IntArray, num_decodes: int) -> PlannedAttention:
        """Lay out chunks, then decodes: their tiles differ, and so does the number of parts.

        Merging the parts of chunks writes all tokens of its launch, so the decodes, which lead, come after.
        """
        is_decode = np.arange(len(query_lens)) < num_decodes
        launches: list[tuple[int | None, AttentionLaunch]] = []
        if num_decodes < len(query_lens):
            launches.append((None, self._launch(np.where(is_decode, 0, query_lens), seq_lens)))
        if num_decodes:
            launches.append((num_decodes, self._launch(np.where(is_decode, query_lens, 0), seq_lens)))
        return _Tiles(launches=tuple(launches), options=self._options)

    def decode(self, size: int, longest: int, device: torch.device) -> Callable[[Sequences], Attend]:
        """Lay out decodes of any length: as many parts as the longest context would want."""
        ones = np.ones(size, dtype=np.int32)
        launch = plan_attention(ones, np.full(size, longest, dtype=np.int32), self._heads, self._gpu)
        tiles = _Tiles(launches=((size, launch),), options=self._options)
        there = [torch.from_numpy(array).to(device) for array in tiles.arrays]
        return lambda sequences: tiles.bind(sequences, there)

    def _launch(self, query_lens: IntArray, seq_lens: IntArray) -> AttentionLaunch:
        # Sequences without new tokens must not make others' contexts be cut.
        lengths = np.where(query_lens > 0, seq_lens, 0)
        return plan_attention(query_lens, lengths, self._heads, self._gpu)


def choose_backend(
    wanted: AttentionBackendName, heads: HeadShape, gpu: Gpu, block_size: int, scale: float
) -> AttentionBackend:
    """Return the backend that was asked for, and log which one computes and why; scale: of scores."""
    is_there = importlib.util.find_spec("flash_attn") is not None
    if wanted == "flash-attn":
        if not is_there:
            raise ModelLoadError(
                "--attention-backend flash-attn: flash_attn is not installed", reason="InvalidConfig"
            )
        if block_size % FLASH_BLOCK_SIZE:
            raise ModelLoadError(
                f"--attention-backend flash-attn needs --block-size {FLASH_BLOCK_SIZE}, not {block_size}",
                reason="InvalidConfig",
            )
        logger.info("attention by flash-attn: asked for")
        return FlashAttention(scale)
    if wanted == "tidemill":
        why = "asked for"
    elif is_there:
        why = "flash_attn is installed, but was not measured to be faster: ask for it by name"
    else:
        why = "flash_attn is not installed"
    logger.info("attention by our own kernel: %s", why)
    return TidemillAttention(heads, AttentionOptions(scale=scale), gpu)


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
        return [int_array(np.concatenate([[0], np.cumsum(self.seq_lens)]))]

    def bind(self, sequences: Sequences, there: Sequence[torch.Tensor]) -> Attend:
        from flash_attn import flash_attn_varlen_func  # noqa: PLC0415 - optional

        def attend(query: torch.Tensor, caches: Caches) -> torch.Tensor:
            attended: torch.Tensor = flash_attn_varlen_func(
                query,
                caches[0],
                caches[1],
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
