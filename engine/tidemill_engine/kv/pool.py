"""Reference-counted blocks: held, free with nothing known in them, or free but still holding a known prefix.

Knows block ids, counts and which blocks are published in the prefix index. Does not know rows or requests.
Free blocks of which nothing is known are a stack and are reused first; then cached ones, by last use.
"Does not fit" is None, not an error; giving back what is not held is a bug and raises.
"""

from __future__ import annotations

import numpy as np

from tidemill_engine.kv.errors import IntegrityError
from tidemill_engine.kv.last_use import LastUseQueue
from tidemill_engine.kv.prefix import PrefixIndex
from tidemill_engine.step import BoolArray, IntArray, int_array


class BlockPool:
    """`num_blocks` blocks; a published block that nobody holds counts as free, and can be revived."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.index = PrefixIndex(num_blocks)
        self._ref_counts = np.zeros(num_blocks, dtype=np.int32)
        self._stack = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_stacked = num_blocks
        self._cached = LastUseQueue(num_blocks)

    @property
    def num_free(self) -> int:
        """Return how many blocks can be allocated, those with a cached prefix included."""
        return self._num_stacked + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Return how many free blocks hold a known prefix."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Return how many blocks somebody holds."""
        return self.num_blocks - self.num_free

    def is_free(self) -> BoolArray:
        """Say of every block whether nobody holds it: `[num_blocks]`."""
        free: BoolArray = self._ref_counts == 0
        return free

    def num_holders(self, block_ids: IntArray | None = None) -> IntArray:
        """Return how many hold each of these blocks, of all by default."""
        return int_array(self._ref_counts if block_ids is None else self._ref_counts[block_ids])

    def allocate(self, count: int) -> IntArray | None:
        """Take that many blocks, each with one holder; None if there are fewer."""
        if count > self.num_free:
            return None
        num_stacked = min(count, self._num_stacked)
        top = self._num_stacked
        self._num_stacked = top - num_stacked
        block_ids = self._stack[self._num_stacked : top][::-1].copy()
        if num_stacked < count:
            evicted = self._cached.pop(count - num_stacked)
            self.index.forget(evicted)
            block_ids = np.concatenate([block_ids, evicted])
        self._ref_counts[block_ids] = 1
        return block_ids

    def allocate_exactly(self, block_ids: IntArray) -> None:
        """Take these blocks, which must be free; what they hold is forgotten. O(number of free blocks)."""
        if np.any(self._ref_counts[block_ids] != 0):
            raise IntegrityError(f"taking blocks that somebody holds: {block_ids.tolist()}")
        cached = block_ids[self._cached.contains(block_ids)]
        self._cached.remove(cached)
        self.index.forget(cached)
        stacked = self._stack[: self._num_stacked]
        kept = stacked[~np.isin(stacked, block_ids)]
        self._stack[: len(kept)] = kept
        self._num_stacked = len(kept)
        self._ref_counts[block_ids] = 1

    def num_idle(self, block_ids: IntArray) -> int:
        """Return how many of these cached blocks are free and would be taken by a revival."""
        return int(np.count_nonzero(self._ref_counts[block_ids] == 0))

    def share(self, block_ids: IntArray) -> None:
        """Add a holder to blocks that are held already."""
        if np.any(self._ref_counts[block_ids] < 1):
            raise IntegrityError(f"sharing blocks that nobody holds: {block_ids.tolist()}")
        np.add.at(self._ref_counts, block_ids, 1)

    def revive(self, block_ids: IntArray) -> None:
        """Add a holder to published blocks, held or free; each is given once."""
        if not np.all(self.index.is_published[block_ids]):
            raise IntegrityError(f"reviving blocks of which nothing is known: {block_ids.tolist()}")
        self._cached.remove(block_ids[self._ref_counts[block_ids] == 0])
        self._ref_counts[block_ids] += 1

    def release(self, block_ids: IntArray) -> None:
        """Take one holder from each block; of those without any, the last given is reused first."""
        np.subtract.at(self._ref_counts, block_ids, 1)
        counts = self._ref_counts[block_ids]
        if np.any(counts < 0):
            raise IntegrityError(f"releasing blocks that nobody holds: {block_ids.tolist()}")
        freed = block_ids[counts == 0]
        if len(freed) > 1:
            _, first = np.unique(freed, return_index=True)
            freed = freed[np.sort(first)]
        is_cached = self.index.is_published[freed]
        self._cached.push(int_array(freed[is_cached][::-1]))
        stacked = freed[~is_cached]
        self._stack[self._num_stacked : self._num_stacked + len(stacked)] = stacked
        self._num_stacked += len(stacked)

    def forget(self, block_ids: IntArray) -> None:
        """Make held blocks unknown to the prefix index, so that nobody new shares them."""
        if np.any(self._ref_counts[block_ids] < 1):
            raise IntegrityError(f"forgetting what free blocks hold: {block_ids.tolist()}")
        self.index.forget(block_ids)

    def check_integrity(self, held_by_rows: IntArray) -> None:
        """Raise unless free + cached + held = total, no block is two of these, and counts match."""
        expected = np.bincount(held_by_rows, minlength=self.num_blocks)
        if not np.array_equal(expected, self._ref_counts):
            wrong = np.flatnonzero(expected != self._ref_counts)
            raise IntegrityError(f"reference counts are wrong for blocks {wrong.tolist()}")
        stacked, cached = self._stack[: self._num_stacked], self._cached.in_order()
        if len(cached) != len(self._cached):
            raise IntegrityError("the count of cached free blocks is wrong")
        free = np.concatenate([stacked, cached])
        if len(np.unique(free)) != len(free):
            raise IntegrityError("a block is free twice")
        if np.any(self._ref_counts[free] != 0):
            raise IntegrityError("a held block is free")
        if np.count_nonzero(self._ref_counts) + len(free) != self.num_blocks:
            raise IntegrityError("blocks are neither free nor held")
        if np.any(self.index.is_published[stacked]) or not np.all(self.index.is_published[cached]):
            raise IntegrityError("a free block is cached without being published, or the other way round")
        self.index.check_integrity()
