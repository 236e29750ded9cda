"""Which free blocks that still hold something useful are reused first: those whose last use is longest ago.

Knows block ids and the order in which they became free. A queue in one array, in which a block that is
taken out of turn stays behind as a stale entry; every operation is vectorised and O(1) per block, amortised.
"""

from __future__ import annotations

import numpy as np

from tidemill_engine.step import IntArray, LongArray, int_array

_NOWHERE = -1
_FIRST_WINDOW = 64


class LastUseQueue:
    """An order of block ids below `num_blocks`, each at most once; oldest first."""

    def __init__(self, num_blocks: int) -> None:
        self._entries = np.zeros(2 * num_blocks + 1, dtype=np.int32)
        self._places: LongArray = np.full(num_blocks, _NOWHERE, dtype=np.int64)
        self._head = 0
        self._tail = 0
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def contains(self, block_ids: IntArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Say of each block whether it is here."""
        found: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = self._places[block_ids] != _NOWHERE
        return found

    def push(self, block_ids: IntArray) -> None:
        """Add blocks, none of which may be here, the first of them to be reused first."""
        if self._tail + len(block_ids) > len(self._entries):
            self._close_ranks()
        end = self._tail + len(block_ids)
        self._entries[self._tail : end] = block_ids
        self._places[block_ids] = np.arange(self._tail, end)
        self._tail = end
        self._num += len(block_ids)

    def remove(self, block_ids: IntArray) -> None:
        """Take blocks out of turn; all of them must be here."""
        self._places[block_ids] = _NOWHERE
        self._num -= len(block_ids)

    def pop(self, count: int) -> IntArray:
        """Take the blocks whose last use is longest ago; there must be that many."""
        window = max(_FIRST_WINDOW, 2 * count)
        while True:
            end = min(self._head + window, self._tail)
            places = np.arange(self._head, end)
            entries = self._entries[self._head : end]
            live = places[self._places[entries] == places]
            if len(live) >= count or end == self._tail:
                break
            window *= 2
        taken = live[:count]
        self._head = int(taken[-1]) + 1 if len(taken) else self._head
        block_ids = int_array(self._entries[taken])
        self.remove(block_ids)
        return block_ids

    def in_order(self) -> IntArray:
        """Return all blocks, oldest first."""
        places = np.arange(self._head, self._tail)
        entries = self._entries[self._head : self._tail]
        return int_array(entries[self._places[entries] == places])

    def _close_ranks(self) -> None:
        """Drop the stale entries: at least as many were pushed since the last time as there are blocks."""
        entries = self.in_order()
        self._entries[: len(entries)] = entries
        self._places[entries] = np.arange(len(entries))
        self._head, self._tail = 0, len(entries)
