"""The one queue of waiting requests: who is tried next, under any order, with fair shares for tenants.

Knows ranks, tenants' counters and how often a request was passed by. Does not know blocks, rows or budgets:
the scheduler tries the candidates in turn and takes those that fit.

- Among the eligible tenants' heads the least rank is next. Others follow when these are exhausted.
- One eighth of the admitted prompt tokens goes to the oldest request, whatever its rank: nobody starves.
- A candidate that does not fit may be passed in 64 steps; from then on nobody but it is offered.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from tidemill_engine.scheduler.entry import Entry, is_on_time
from tidemill_engine.scheduler.fairness import TenantCounters
from tidemill_engine.scheduler.lazy_heap import LazyHeap
from tidemill_engine.scheduler.order import HOPELESS, Estimates, OrderPolicy, Rank, preempted
from tidemill_engine.scheduler.patience import OldestShare, Passing
from tidemill_engine.scheduler.ranking import FairRanking

if TYPE_CHECKING:
    from tidemill_engine.config import OrderConfig
    from tidemill_engine.request import Request
    from tidemill_engine.step import IntArray

logger = logging.getLogger(__name__)

ELIGIBLE_CHUNKS = 2
AFFINITY_SLACK = 0.1
"""Requests of one class and band whose keys differ by less are equals: a cached prefix may decide."""
AFFINITY_WINDOW = 16
RECONSIDER_SECONDS = 1.0
MAX_RECONSIDERED = 64


def _no_estimate(_request: Request) -> float:
    """Predict nothing: for orders that need no prediction, or before a model is there."""
    return 0.0


NO_ESTIMATES = Estimates(prefill_seconds=_no_estimate, total_seconds=_no_estimate)


class WaitingQueue:
    """Every live request passes through: `push` at its arrival, `remove` at its end, wherever it then is."""

    def __init__(
        self,
        config: OrderConfig,
        *,
        max_chunk_tokens: int,
        max_num_seqs: int = 1 << 30,
        estimates: Estimates = NO_ESTIMATES,
        affinity: Callable[[Request], bool] | None = None,
    ) -> None:
        self._policy = OrderPolicy(config, estimates)
        self._affinity = affinity
        self._num_slots = max_num_seqs
        self._now = float("-inf")
        self.tenants = TenantCounters(config.tenant_weights)
        self._entries: dict[str, Entry] = {}
        self._live: set[str] = set()
        self._ranking = FairRanking(
            self.tenants,
            slack=float(ELIGIBLE_CHUNKS * max_chunk_tokens),
            is_held_back=self._is_held_back,
        )
        self._held_back: set[int] = set()
        """Tenants that nobody is offered of any more in this pass over the candidates."""
        self._oldest = OldestShare()
        self._passing = Passing()
        self._timers: LazyHeap[Entry] = LazyHeap(is_on_time)
        self._hopeless: deque[Entry] = deque()
        self._reconsidered_at = float("-inf")
        self._num_tokens = 0
        self.num_taken = 0
        """How many requests have been taken so far."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all waiting requests together, as they were when they began to wait."""
        return self._num_tokens

    def requests(self) -> Iterator[Request]:
        """Yield all waiting requests, in no order of preference."""
        return (entry.request for entry in self._entries.values())

    @property
    def oldest_arrival_time(self) -> float | None:
        """Return when the oldest waiting request arrived; None if nobody waits."""
        oldest = self._oldest.oldest()
        return None if oldest is None else oldest.request.arrival_time

    @property
    def num_hopeless(self) -> int:
        """Return how many waiting requests will miss their deadline whatever is done."""
        return sum(entry.is_waiting and entry.rank.band == HOPELESS for entry in self._hopeless)

    def push(self, request: Request, now: float) -> None:
        """Take in a new request, which gets its rank and its tenant's index."""
        request.rank = self._policy.rank(request)
        request.tenant_index = self.tenants.enter(request.tenant, request.tenant_weight)
        self._live.add(request.request_id)
        self._insert(request, request.rank, is_new=True)
        self.refresh(now)

    def requeue(self, request: Request, now: float) -> None:
        """Take back a request that was taken: it keeps its key and goes first in its class."""
        request.rank = preempted(_rank_of(request))
        self._insert(request, request.rank, is_new=False)
        self.refresh(now)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended, whether it waits or not; a second time does nothing."""
        if request.request_id not in self._live:
            return
        if request.request_id in self._entries:
            self._stop_waiting(self._entries[request.request_id])
        self._live.discard(request.request_id)
        self.tenants.leave(request.tenant_index, self._now)
        self._ranking.forget_idle(request.tenant_index)

    def take(self, request: Request, now: float, *, num_uncached_tokens: int | None = None) -> None:
        """Admit a waiting request, and charge its tenant the prompt where it is computed for the first time.

        `num_uncached_tokens` is what remains to be computed of the prompt, all of it by default.
        """
        entry = self._entries[request.request_id]
        count = request.num_tokens if num_uncached_tokens is None else num_uncached_tokens
        self._passing.note_taken(entry)
        self._oldest.note_taken(entry, count)
        self._stop_waiting(entry)
        self.num_taken += 1
        if entry.rank.is_fresh:
            self.tenants.charge(request.tenant_index, num_prompt_tokens=count)
        self.refresh(now)

    def defer(self, request: Request) -> None:
        """Note that a candidate is left alone for a reason of its own: those that pass it are not counted."""
        self._entries[request.request_id].is_deferred = True

    def hold_back(self, request: Request) -> None:
        """Defer a candidate whose tenant holds its share, and offer no other of its tenant in this pass."""
        self.defer(request)
        self._held_back.add(request.tenant_index)

    def charge_outputs(self, tenant_indices: IntArray) -> None:
        """Charge tenants one output token for each entry: `[num_rows]`, with repetition."""
        self.tenants.charge_outputs(tenant_indices)

    def victim_key(self, request: Request) -> Rank:
        """Return a running request's place in the order: the greatest is preempted first."""
        return _rank_of(request)

    def refresh(self, now: float) -> None:
        """Move those whose time has passed to the hopeless band, and look again at a few of these."""
        self._now = max(self._now, now)
        if not self._policy.has_deadlines:
            return
        while (slot := self._timers.top()) is not None and slot.key < now:
            self._timers.pop()
            entry = slot.item
            if entry.rank.is_fresh:
                logger.info("request %s can't meet its SLO any more", entry.request.request_id)
                self._set_rank(entry, entry.rank._replace(band=HOPELESS))
                self._note_hopeless(entry)
        if self._hopeless and now - self._reconsidered_at >= RECONSIDER_SECONDS:
            self._reconsidered_at = now
            self._reconsider(now)

    def candidates(self, now: float) -> Iterator[Request]:
        """Yield waiting requests in the order in which to try them; they wait until they are taken.

        Taking, removing and deferring are allowed meanwhile; a `push` or `requeue` ends the iteration.
        """
        self.refresh(now)
        self._held_back.clear()
        insistent = self._passing.begin()
        if insistent is not None and not self.holds_its_slots(insistent.request.tenant_index):
            yield insistent.request
            if insistent.request.tenant_index not in self._held_back:
                return
        yield from (entry.request for entry in self._offers())

    def first(self, now: float, held_back: Collection[int] = ()) -> Request | None:
        """Return who is tried first if only these tenants are held back; None if nobody else waits."""
        self.refresh(now)
        entry = self._passing.insistent()
        if entry is None or entry.request.tenant_index in held_back:
            entry = self._ranking.first(held_back)
        return None if entry is None else entry.request

    def holds_its_slots(self, tenant_index: int) -> bool:
        """Say whether a tenant runs as many requests as it may while others are active."""
        num_running = self.tenants.num_running(tenant_index)
        if 2 * num_running < self._num_slots:
            return False
        return num_running >= self.tenants.max_held(tenant_index, self._num_slots, self._now)

    def max_held_blocks(self, tenant_index: int, num_blocks: int) -> int:
        """Return how many of so many blocks a tenant may hold now: all of them if nothing of it runs."""
        if self.tenants.num_running(tenant_index) == 0:
            return num_blocks
        return self.tenants.max_held(tenant_index, num_blocks, self._now)

    def _is_held_back(self, tenant_index: int) -> bool:
        """Say whether nobody of a tenant is offered now."""
        return tenant_index in self._held_back or self.holds_its_slots(tenant_index)

    def _offers(self) -> Iterator[Entry]:
        """Yield the oldest where its share is due, then all the others, noting the first that is left."""
        offered: Entry | None = None
        while (oldest := self._oldest.due()) is not None and oldest is not offered:
            offered = oldest
            if not self._is_held_back(oldest.request.tenant_index):
                yield from self._offer(oldest)
        for entry in self._affine(self._ranking.entries()):
            # A window of equals was drawn before the first of them was taken: look at its tenant once more.
            is_held_back = self._is_held_back(entry.request.tenant_index)
            if entry.is_waiting and entry is not offered and not is_held_back:
                yield from self._offer(entry)

    def _offer(self, entry: Entry) -> Iterator[Entry]:
        """Yield an entry; the first one that is left waiting is the head, which others then pass."""
        entry.is_deferred = False
        yield entry
        self._passing.note_left(entry)

    def _affine(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Reorder equals so that those whose prefix is cached or being computed come first."""
        if self._affinity is None:
            yield from entries
            return
        window: list[Entry] = []
        for entry in entries:
            if window and (len(window) >= AFFINITY_WINDOW or not _are_equals(window[0].rank, entry.rank)):
                yield from self._sorted_by_affinity(window)
                window = []
            window.append(entry)
        yield from self._sorted_by_affinity(window)

    def _sorted_by_affinity(self, window: list[Entry]) -> list[Entry]:
        """Return a window with the affine requests first, otherwise as it was."""
        affinity = self._affinity
        if affinity is None or len(window) < 2:
            return window
        return sorted(window, key=lambda entry: not affinity(entry.request))

    def _insert(self, request: Request, rank: Rank, *, is_new: bool) -> None:
        """Make a request wait."""
        entry = Entry(request, rank)
        self._entries[request.request_id] = entry
        self._num_tokens += entry.num_tokens
        self.tenants.begin_waiting(request.tenant_index, is_new=is_new)
        self._set_rank(entry, rank)
        self._oldest.push(entry)

    def _set_rank(self, entry: Entry, rank: Rank) -> None:
        """Put an entry where its rank belongs; where it was before is stale."""
        entry.rank = rank
        entry.request.rank = rank
        self._ranking.push(entry)
        if self._policy.has_deadlines and rank.is_fresh and rank.band != HOPELESS:
            self._timers.push(rank.key, entry)

    def _stop_waiting(self, entry: Entry) -> None:
        """Stop counting an entry; the heaps drop it when it surfaces."""
        entry.is_waiting = False
        del self._entries[entry.request.request_id]
        self._num_tokens -= entry.num_tokens
        self.tenants.stop_waiting(entry.request.tenant_index)
        self._ranking.note_change(entry.request.tenant_index)

    def _note_hopeless(self, entry: Entry) -> None:
        """Remember whom to look at again, without those that have left."""
        self._hopeless.append(entry)
        if len(self._hopeless) > 2 * len(self._entries) + MAX_RECONSIDERED:
            self._hopeless = deque(old for old in self._hopeless if old.is_waiting)

    def _reconsider(self, now: float) -> None:
        """Let those hopeless requests hope again whose prediction has improved, a few at a time."""
        for _ in range(min(len(self._hopeless), MAX_RECONSIDERED)):
            entry = self._hopeless.popleft()
            if not entry.is_waiting or entry.rank.band != HOPELESS:
                continue
            rank = self._policy.hopeful_rank(entry.request, entry.rank, now)
            if rank is None:
                self._hopeless.append(entry)
                continue
            logger.info("request %s may meet its SLO after all", entry.request.request_id)
            self._set_rank(entry, rank)


def _are_equals(first: Rank, other: Rank) -> bool:
    """Say whether two ranks are so near that a cached prefix may decide between them."""
    return first[:3] == other[:3] and other.key - first.key < AFFINITY_SLACK


def _rank_of(request: Request) -> Rank:
    if request.rank is None:
        raise RuntimeError(f"request {request.request_id} never waited here")
    return request.rank
