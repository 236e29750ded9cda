"""Where each sequence of a step has its keys and values: stretches of slots, found once per step.

Knows block tables and lengths; does not touch keys or values. A part that lies in one piece is read in place;
one that lies scattered is copied into one piece, since a call for each piece costs up to twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

Blocks = npt.NDArray[np.integer]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Consecutive positions of a sequence: `slots`, one range of the cache or an index `[length]` int64.

    `is_causal`: query i sees the first `i + 1` positions; otherwise all see all.
    """

    slots: slice | torch.Tensor
    is_causal: bool = False


@dataclass(frozen=True, kw_only=True)
class Span:
    """Tokens `start .. end` of the flat batch, the newest of one sequence, and what they see, in order."""

    start: int
    end: int
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """All tokens of one step, sequence by sequence."""

    spans: tuple[Span, ...]


def make_plan(
    block_table: Blocks, seq_lens: list[int], query_start_loc: list[int], block_size: int
) -> AttentionPlan:
    """Lay out one step.

    block_table: `[num_seqs, max_blocks]`; seq_lens: `[num_seqs]`, this step's tokens included;
    query_start_loc: `[num_seqs + 1]` into the flat batch.
    """
    spans = []
    for index, length in enumerate(seq_lens):
        start, end = query_start_loc[index], query_start_loc[index + 1]
        blocks = block_table[index, : -(-length // block_size)].astype(np.int64)
        spans.append(
            Span(start=start, end=end, stretches=_stretches(blocks, length, end - start, block_size))
        )
    return AttentionPlan(spans=tuple(spans))


def _stretches(blocks: Blocks, length: int, num_queries: int, block_size: int) -> tuple[Stretch, ...]:
    """Divide a sequence: what all its queries see, and from the first of several queries on what some do."""
    first = length - num_queries if num_queries > 1 else length
    runs = _runs(blocks, length, block_size)
    stretches = []
    if first:
        stretches.append(Stretch(slots=_slots(_between(runs, 0, first))))
    if first < length:
        stretches.append(Stretch(slots=_slots(_between(runs, first, length)), is_causal=True))
    return tuple(stretches)


def _runs(blocks: Blocks, length: int, block_size: int) -> list[range]:
    """Return the slots of a sequence's positions, as few ranges as there are groups of neighbours."""
    edges = np.flatnonzero(np.diff(blocks) != 1) + 1
    starts = [0, *edges.tolist(), len(blocks)]
    runs = []
    for begin, end in pairwise(starts):
        slot = int(blocks[begin]) * block_size
        runs.append(range(slot, slot + min(end * block_size, length) - begin * block_size))
    return runs


def _between(runs: list[range], first: int, last: int) -> list[range]:
    """Return the parts of the ranges that hold positions `first .. last`."""
    parts, position = [], 0
    for run in runs:
        part = run[max(first - position, 0) : max(last - position, 0)]
        position += len(run)
        if part:
            parts.append(part)
    return parts


def _slots(runs: list[range]) -> slice | torch.Tensor:
    """Return one range as it is, several as an index."""
    if len(runs) == 1:
        return slice(runs[0].start, runs[0].stop)
    return torch.from_numpy(np.concatenate([np.arange(run.start, run.stop) for run in runs]))
