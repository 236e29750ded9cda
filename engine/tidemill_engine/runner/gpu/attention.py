"""How a step's attention is laid out on a device, by our own kernel.

A backend plans a step on the host, names what it needs on the device, and attends layer by layer. Other
libraries stand in `attention_libraries`, and the choice among them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from tidemill_kernels.paged_attention.batch import AttentionOptions, PagedBatch
from tidemill_kernels.paged_attention.launch import AttentionLaunch, Gpu, HeadShape, plan_attention
from tidemill_kernels.paged_attention.triton_kernel import paged_attention

if TYPE_CHECKING:
    from tidemill_engine.models.device_llama import Attend, Caches
    from tidemill_engine.step import IntArray


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

    @property
    def can_capture(self) -> bool:
        """Say whether decode steps can be captured in graphs."""

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
                paged_attention(
                    query[:count],
                    (caches.keys, caches.values),
                    batch,
                    launch,
                    self.options,
                    out=out[:count],
                    scales=caches.scales,
                )
            return out

        return attend


class TidemillAttention:
    """Our own kernel."""

    can_capture = True

    def __init__(
        self, heads: HeadShape, options: AttentionOptions, gpu: Gpu, *, is_float32: bool = False
    ) -> None:
        self._heads = heads
        self._options = options
        self._gpu = gpu
        self._is_float32 = is_float32

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
        launch = self._launch(ones, np.full(size, longest, dtype=np.int32))
        tiles = _Tiles(launches=((size, launch),), options=self._options)
        there = [torch.from_numpy(array).to(device) for array in tiles.arrays]
        return lambda sequences: tiles.bind(sequences, there)

    def _launch(self, query_lens: IntArray, seq_lens: IntArray) -> AttentionLaunch:
        # Sequences without new tokens must not make others' contexts be cut.
        lengths = np.where(query_lens > 0, seq_lens, 0)
        return plan_attention(query_lens, lengths, self._heads, self._gpu, is_float32=self._is_float32)
