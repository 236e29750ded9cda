"""One stay of a request in the queue, and when a slot of a heap that holds it still counts.

Knows the request's rank and what happened to it while it waited. Does not know the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_engine.scheduler.order import HOPELESS

if TYPE_CHECKING:
    from tidemill_engine.request import Request
    from tidemill_engine.scheduler.lazy_heap import Slot
    from tidemill_engine.scheduler.order import Rank


class Entry:
    """A waiting request; `is_waiting` ends when it is taken or removed, and never comes back."""

    __slots__ = ("is_deferred", "is_waiting", "last_pass", "num_passed", "num_tokens", "rank", "request")

    def __init__(self, request: Request, rank: Rank) -> None:
        self.request = request
        self.rank = rank
        self.num_tokens = request.num_tokens
        self.is_waiting = True
        self.is_deferred = False
        self.num_passed = 0
        self.last_pass = -1


def has_its_rank(slot: Slot[Entry]) -> bool:
    """Say whether the entry waits and this slot is where its present rank put it."""
    return slot.item.is_waiting and slot.item.rank is slot.key


def waits(slot: Slot[Entry]) -> bool:
    """Say whether the entry waits."""
    return slot.item.is_waiting


def is_on_time(slot: Slot[Entry]) -> bool:
    """Say whether the entry waits and may still become hopeless."""
    return slot.item.is_waiting and slot.item.rank.band != HOPELESS
