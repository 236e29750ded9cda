"""Reference-counted blocks and a stack of the free ones.

Knows block ids and counts. Does not know rows, requests or what a block holds. "Does not fit" is None, not
an error; giving back what is not held is a bug and raises.
"""

from __future__ import annotations

import numpy as np

from tidemill_engine.step import IntArray, int_array


class IntegrityError(RuntimeError):
    """The books do not balance: a bug, found before it spoils a request's tokens."""


class BlockPool:
    """`num_blocks` blocks, each free (on the stack, count 0) or held (count of its holders)."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = np.zeros(num_blocks, dtype=np.int32)
        self._stack = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        """Return how many blocks can be allocated."""
        return self._num_free

    @property
    def num_held(self) -> int:
        """Return how many blocks somebody holds."""
        return self.num_blocks - self._num_free

    def allocate(self, count: int) -> IntArray | None:
        """Take that many blocks, each with one holder; None if there are fewer."""
        if count > self._num_free:
            return None
        top = self._num_free
        self._num_free = top - count
        block_ids = self._stack[self._num_free : top][::-1].copy()
        self._ref_counts[block_ids] = 1
        return block_ids

    def share(self, block_ids: IntArray) -> None:
        """Add a holder to blocks that are held already."""
        if np.any(self._ref_counts[block_ids] < 1):
            raise IntegrityError(f"sharing blocks that nobody holds: {block_ids.tolist()}")
        np.add.at(self._ref_counts, block_ids, 1)

    def release(self, block_ids: IntArray) -> None:
        """Take one holder from each block; those without any become free, the first given is reused last."""
        np.subtract.at(self._ref_counts, block_ids, 1)
        counts = self._ref_counts[block_ids]
        if np.any(counts < 0):
            raise IntegrityError(f"releasing blocks that nobody holds: {block_ids.tolist()}")
        freed = int_array(list(dict.fromkeys(block_ids[counts == 0].tolist())))
        self._stack[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)

    def check_integrity(self, held_by_rows: IntArray) -> None:
        """Raise unless free + held = total, no block is both, and counts match `held_by_rows`."""
        expected = np.bincount(held_by_rows, minlength=self.num_blocks)
        if not np.array_equal(expected, self._ref_counts):
            wrong = np.flatnonzero(expected != self._ref_counts)
            raise IntegrityError(f"reference counts are wrong for blocks {wrong.tolist()}")
        free = self._stack[: self._num_free]
        if len(np.unique(free)) != self._num_free:
            raise IntegrityError("a block is on the free stack twice")
        if np.any(self._ref_counts[free] != 0):
            raise IntegrityError("a held block is on the free stack")
        if np.count_nonzero(self._ref_counts) + self._num_free != self.num_blocks:
            raise IntegrityError("blocks are neither free nor held")
