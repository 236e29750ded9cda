"""How scattered tables are, and where a table would fit in one piece. Pure array arithmetic."""

from __future__ import annotations

import numpy as np

from tidemill_engine.step import BoolArray, IntArray


def is_contiguous(block_ids: IntArray) -> bool:
    """Say whether each block stands right behind the one before it."""
    return bool(np.all(np.diff(block_ids) == 1))


def fragmentation_ratio(block_table: IntArray, num_held: IntArray) -> float:
    """Return the share of neighbours in tables that are not neighbours in the pool; 0 without any."""
    width = int(num_held.max(initial=0))
    if width < 2:
        return 0.0
    is_pair = np.arange(1, width)[None, :] < num_held[:, None]
    is_apart = np.diff(block_table[:, :width], axis=1) != 1
    num_pairs = int(np.count_nonzero(is_pair))
    return int(np.count_nonzero(is_apart & is_pair)) / num_pairs


def find_run(is_free: BoolArray, length: int) -> int | None:
    """Return the start of the shortest run of free blocks that is long enough, the first of several."""
    edges = np.diff(np.concatenate([[False], is_free, [False]]).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    lengths = ends - starts
    fits = np.flatnonzero(lengths >= length)
    if len(fits) == 0:
        return None
    return int(starts[fits[np.argmin(lengths[fits])]])
