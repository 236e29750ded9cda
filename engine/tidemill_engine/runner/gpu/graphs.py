"""Decode steps captured as CUDA graphs, one for each of some sizes; a step is padded to the next of them.

Padding rows compute for nobody: they have a row, a token and a block of their own.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from tidemill_engine.runner.gpu.device import Captured, Device
    from tidemill_engine.step import IntArray

logger = logging.getLogger(__name__)

LARGEST_SIZE = 1024


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the sizes to capture: few rows exactly, then steps of 8, 16 from 64 on, 64 from 512 on; pure."""
    largest = min(max_num_seqs, LARGEST_SIZE)
    sizes = {1, 2, 4, *range(8, 65, 8), *range(80, 513, 16), *range(576, LARGEST_SIZE + 1, 64), largest}
    return tuple(sorted(size for size in sizes if size <= largest))


def size_for(num_rows: int, sizes: Sequence[int]) -> int | None:
    """Return the least captured size that so many rows fit in; None if there is none. Pure."""
    place = bisect.bisect_left(sizes, num_rows)
    return sizes[place] if num_rows > 0 and place < len(sizes) else None


@dataclass(frozen=True, kw_only=True)
class DecodeRows:
    """A decode step's rows, each `[size]` int32: which, and the position of the token that each computes."""

    rows: torch.Tensor
    start_pos: torch.Tensor
    seq_lens: torch.Tensor


class DecodeGraphs:
    """Captured decode steps. `prepare` returns per size what turns rows into `[size, vocab_size]` logits.

    logits: `[largest size, vocab_size]`, into which every step computes.
    """

    def __init__(
        self,
        device: Device,
        sizes: Sequence[int],
        padding_row: int,
        prepare: Callable[[int], Callable[[DecodeRows], torch.Tensor]],
        logits: torch.Tensor,
    ) -> None:
        self._sizes = tuple(sizes)
        self._padding_row = padding_row
        self._logits = logits
        like = torch.empty(max(sizes, default=0), dtype=torch.int32, device=device.torch_device)
        self._rows = torch.full_like(like, padding_row)
        self._start_pos, self._seq_lens = torch.zeros_like(like), torch.ones_like(like)
        started = time.monotonic()
        self._captured: dict[int, Captured] = {}
        # The largest first: the others then find their work space in its memory.
        for size in sorted(sizes, reverse=True):
            rows = DecodeRows(
                rows=self._rows[:size], start_pos=self._start_pos[:size], seq_lens=self._seq_lens[:size]
            )
            # Nothing may come from the host while a graph is captured: what does is prepared before.
            self._captured[size] = device.capture(partial(self._compute, prepare(size), rows))
        if sizes:
            logger.info("captured %d decode sizes in %.1f s", len(sizes), time.monotonic() - started)

    def size_for(self, num_rows: int) -> int | None:
        """Return the captured size that a step of so many rows is padded to."""
        return size_for(num_rows, self._sizes)

    def arrays(self, rows: IntArray, start_pos: IntArray, size: int) -> list[IntArray]:
        """Return a step's rows, padded, as `run` wants them on the device: `[3, size]`."""
        padded = np.zeros((3, size), dtype=np.int32)
        padded[0], padded[2] = self._padding_row, 1
        padded[0, : len(rows)], padded[1, : len(rows)], padded[2, : len(rows)] = (
            rows,
            start_pos,
            start_pos + 1,
        )
        return [padded]

    def run(self, there: torch.Tensor, size: int) -> torch.Tensor:
        """Compute a decode step: logits `[size, vocab_size]`, good until the next one is computed."""
        rows, start_pos, seq_lens = there.view(3, size)
        self._rows[:size].copy_(rows)
        self._start_pos[:size].copy_(start_pos)
        self._seq_lens[:size].copy_(seq_lens)
        self._captured[size].replay()
        return self._logits[:size]

    def _compute(self, decode: Callable[[DecodeRows], torch.Tensor], rows: DecodeRows) -> None:
        """Compute into the one tensor that all graphs share; one of its own for each would take gigabytes."""
        self._logits[: len(rows.rows)].copy_(decode(rows))
