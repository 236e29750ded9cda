"""Who may not be passed any longer: the oldest, by its share, and a head that was passed too often.

Knows entries, tokens and passes over the queue. Does not know ranks or tenants.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidemill_engine.scheduler.entry import waits
from tidemill_engine.scheduler.lazy_heap import LazyHeap

if TYPE_CHECKING:
    from tidemill_engine.scheduler.entry import Entry

logger = logging.getLogger(__name__)

MAX_PASSED_STEPS = 64
OLDEST_SHARE = 1 / 8


class OldestShare:
    """Puts one eighth of the admitted tokens aside, until they are enough for the oldest request."""

    def __init__(self) -> None:
        self._by_age: LazyHeap[Entry] = LazyHeap(waits)
        self._credit = 0.0

    def push(self, entry: Entry) -> None:
        """Take note of an entry that begins to wait."""
        self._by_age.push((entry.request.arrival_time, entry.request.order), entry)

    def oldest(self) -> Entry | None:
        """Return the oldest waiting entry."""
        slot = self._by_age.top()
        return None if slot is None else slot.item

    def due(self) -> Entry | None:
        """Return the oldest waiting entry if it is its turn; no more is saved than it needs."""
        oldest = self.oldest()
        if oldest is None or self._credit < oldest.num_tokens:
            return None
        self._credit = float(oldest.num_tokens)
        return oldest

    def note_taken(self, entry: Entry, num_tokens: int) -> None:
        """Count what is admitted: for the oldest it is taken from its savings, else its share is added."""
        if self.oldest() is entry:
            self._credit = max(0.0, self._credit - entry.num_tokens)
        else:
            self._credit += OLDEST_SHARE * max(num_tokens, 1)


class Passing:
    """Counts the steps in which others pass the first candidate that was left waiting."""

    def __init__(self) -> None:
        self._pass_id = 0
        self._head: Entry | None = None
        self._insistent: Entry | None = None

    def begin(self) -> Entry | None:
        """Begin a pass over the candidates; return the entry that nobody may pass, if there is one."""
        self._pass_id += 1
        self._head = None
        return self.insistent()

    def insistent(self) -> Entry | None:
        """Return the entry that nobody may pass any more, if there is one."""
        if self._insistent is not None and not self._insistent.is_waiting:
            self._insistent = None
        return self._insistent

    def note_left(self, entry: Entry) -> None:
        """Note that a candidate was offered and still waits."""
        if self._head is None and entry.is_waiting and not entry.is_deferred:
            self._head = entry

    def note_taken(self, entry: Entry) -> None:
        """Count a step in which the head is passed, once however many pass it."""
        head = self._head
        if head is None or head is entry or not head.is_waiting or head.last_pass == self._pass_id:
            return
        head.last_pass = self._pass_id
        head.num_passed += 1
        if head.num_passed >= MAX_PASSED_STEPS:
            logger.info(
                "request %s was passed in %d steps: all wait", head.request.request_id, head.num_passed
            )
            self._insistent = head
