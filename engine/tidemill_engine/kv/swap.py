"""The CPU pool: places for the blocks of preempted requests.

Knows places and whose turn to be free it is. A place that is read from by a step may not be written by the
same step, since swapping out comes first: it is free only from the next step on.
"""

from __future__ import annotations

import numpy as np

from tidemill_engine.kv.errors import IntegrityError
from tidemill_engine.step import IntArray


class SwapSpace:
    """`num_blocks` places, each free, held by a swapped request, or leaving with the step under way."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._stack = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks
        self._is_held = np.zeros(num_blocks, dtype=np.bool_)
        self._leaving: list[IntArray] = []

    @property
    def num_free(self) -> int:
        """Return how many places can be taken now."""
        return self._num_free

    @property
    def num_held(self) -> int:
        """Return how many places hold swapped blocks, or did when the step under way began."""
        return self.num_blocks - self._num_free

    def take(self, count: int) -> IntArray | None:
        """Take that many places; None if there are fewer."""
        if count > self._num_free:
            return None
        top = self._num_free
        self._num_free = top - count
        places = self._stack[self._num_free : top][::-1].copy()
        self._is_held[places] = True
        return places

    def leave(self, places: IntArray) -> None:
        """Give places back once the step under way has read them."""
        self._leaving.append(places)

    def end_step(self) -> None:
        """Free the places that the step just put together reads from."""
        for places in self._leaving:
            self.free(places)
        self._leaving.clear()

    def free(self, places: IntArray) -> None:
        """Give back places that nobody is going to read."""
        if not np.all(self._is_held[places]):
            raise IntegrityError(f"freeing places of the CPU pool that are free: {places.tolist()}")
        self._is_held[places] = False
        self._stack[self._num_free : self._num_free + len(places)] = places
        self._num_free += len(places)

    def check_integrity(self) -> None:
        """Raise unless every place is either free or held."""
        free = self._stack[: self._num_free]
        if len(np.unique(free)) != len(free) or np.any(self._is_held[free]):
            raise IntegrityError("a place of the CPU pool is free twice, or free and held")
        if np.count_nonzero(self._is_held) + len(free) != self.num_blocks:
            raise IntegrityError("places of the CPU pool are neither free nor held")
