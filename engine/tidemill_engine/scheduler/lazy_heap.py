"""A heap whose entries can go stale where they are, and be walked in order without being taken.

Knows keys and entries; an entry is live while its owner says so. Does not know requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_SLACK = 64


@dataclass(frozen=True, slots=True)
class Slot(Generic[Item]):
    """An item in a heap, with the key that put it there; `number` breaks ties in order of insertion."""

    key: Any
    number: int
    item: Item

    def __lt__(self, other: Slot[Item]) -> bool:
        return bool((self.key, self.number) < (other.key, other.number))


class LazyHeap(Generic[Item]):
    """Stale slots stay until they surface, or until they are more than the live ones."""

    def __init__(self, is_live: Callable[[Slot[Item]], bool]) -> None:
        self._is_live = is_live
        self._slots: list[Slot[Item]] = []
        self._num_pushed = 0
        self._compact_at = _SLACK

    def __len__(self) -> int:
        return len(self._slots)

    def push(self, key: Any, item: Item) -> Slot[Item]:
        """Add an item and return its slot."""
        if len(self._slots) >= self._compact_at:
            self._slots = [slot for slot in self._slots if self._is_live(slot)]
            heapq.heapify(self._slots)
            self._compact_at = 2 * len(self._slots) + _SLACK
        slot = Slot(key, self._num_pushed, item)
        heapq.heappush(self._slots, slot)
        self._num_pushed += 1
        return slot

    def top(self) -> Slot[Item] | None:
        """Return the least live slot, dropping stale ones before it."""
        while self._slots:
            if self._is_live(self._slots[0]):
                return self._slots[0]
            heapq.heappop(self._slots)
        return None

    def pop(self) -> None:
        """Drop the least slot."""
        heapq.heappop(self._slots)

    def walk(self) -> Walk[Item]:
        """Return a walk over the live slots in order; it ends silently where the heap has changed."""
        self.top()
        return Walk(self._slots, self._num_pushed, self)

    def has_changed_since(self, num_pushed: int) -> bool:
        """Say whether anything was pushed since a walk began."""
        return self._num_pushed != num_pushed

    def is_live(self, slot: Slot[Item]) -> bool:
        """Say whether a slot still counts."""
        return self._is_live(slot)


class Walk(Generic[Item]):
    """Visits a binary heap in order: children wait in a small heap of their own until their turn comes."""

    def __init__(self, slots: list[Slot[Item]], num_pushed: int, heap: LazyHeap[Item]) -> None:
        self._slots = slots
        self._num_pushed = num_pushed
        self._heap = heap
        self._front: list[tuple[Slot[Item], int]] = [(slots[0], 0)] if slots else []

    def peek(self) -> Slot[Item] | None:
        """Return the next live slot, without going past it."""
        if self._heap.has_changed_since(self._num_pushed):
            return None
        while self._front:
            slot = self._front[0][0]
            if self._heap.is_live(slot):
                return slot
            self.advance()
        return None

    def advance(self) -> None:
        """Go past the next slot."""
        _, index = heapq.heappop(self._front)
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(self._slots):
                heapq.heappush(self._front, (self._slots[child], child))
