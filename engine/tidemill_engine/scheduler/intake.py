"""Lets waiting requests join the running ones: what each brings along, what it needs, whether that fits.

Knows watermarks, cached prefixes, forks and swapped requests. Does not know the order, which is the queue's,
nor when a row ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.request import Request, RequestStatus
from tidemill_engine.step import int_array

if TYPE_CHECKING:
    from tidemill_engine.scheduler.parts import Parts
    from tidemill_engine.scheduler.plan import StepPlan
    from tidemill_engine.scheduler.sharing import Offer

MAX_TRIED = 16
"""So many requests that do not fit are tried in a step before the others are left for the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Need:
    """What admitting a request takes: blocks in all, blocks at once, and tokens that are computed already.

    `num_swapped_blocks` full ones of these tokens come from the CPU pool.
    """

    num_blocks: int
    num_blocks_now: int
    num_computed_tokens: int
    num_swapped_blocks: int = 0


class Intake:
    """Admits requests into a plan."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._kv = parts.kv
        self._shares = parts.shares

    def admit(self, plan: StepPlan) -> None:
        """Let waiting requests in, in order, as long as budget, rows, blocks and watermarks allow."""
        parts = self._parts
        if plan.num_preempted or (len(parts.queue) == 0 and parts.gate.is_open):
            return
        committed = self.num_committed_blocks()
        parts.gate.refresh(plan.step_id, committed)
        num_running = self._rows.num_running
        if num_running and not parts.gate.is_open:
            return
        num_tried = 0
        for request in parts.queue.candidates(plan.now):
            if not self._has_room(plan) or num_tried >= MAX_TRIED:
                return
            offer = parts.sharing.find(request)
            if offer.is_awaited:
                parts.queue.defer(request)
                continue
            need = self._need(request, offer)
            if self._shares.excess(request.tenant_index, need.num_blocks, committed):
                parts.queue.hold_back(request)
                continue
            if not self._fits(plan, request, need, committed if num_running else None):
                num_tried += 1
                continue
            self._start(request, offer, need, plan)
            committed += need.num_blocks
            num_running += 1

    def rows_in_the_way(self, plan: StepPlan) -> list[int]:
        """Return the rows of lower classes without which the first that waits fits; none if it fits now.

        Whom its own tenant's share keeps waiting keeps nobody of another tenant from being the first.
        """
        queue = self._parts.queue
        if len(queue) == 0 or not self._parts.gate.is_open:
            return []
        held_back: set[int] = set()
        while len(held_back) < MAX_TRIED and (head := queue.first(plan.now, held_back)) is not None:
            rows = self._rows_in_the_way_of(head, plan)
            if rows is not None:
                return rows
            held_back.add(head.tenant_index)
        return []

    def _rows_in_the_way_of(self, head: Request, plan: StepPlan) -> list[int] | None:
        """Return the rows of lower classes without which a request fits; None if its tenant's share is full.

        Rows that steps in flight still hold count as gone: nobody is preempted twice for one request.
        """
        parts = self._parts
        victims = parts.preemptor.lower_rows(head, plan.step_id)
        offer = parts.sharing.find(head) if victims else None
        if offer is None or offer.is_awaited:
            return []
        need, committed = self._need(head, offer), self.num_committed_blocks()
        has_its_slots = parts.queue.holds_its_slots(head.tenant_index)
        excess = self._shares.excess(head.tenant_index, need.num_blocks, committed)
        num_own = parts.queue.tenants.num_running(head.tenant_index)
        if has_its_slots or excess:
            victims = [row for row in victims if self._rows.tenant_index[row] == head.tenant_index]
        stopped = np.flatnonzero(~self._rows.is_running)
        gone = self._kv.num_freed_in_turn(int_array([*stopped, *victims]), offer.found).tolist()
        by_then = [0, *gone][len(stopped) :]
        for count, num_blocks in enumerate(by_then):
            beside, num_freed = self._rows.num_running - count, num_blocks - by_then[0]
            has_blocks = need.num_blocks_now <= self._kv.num_free_blocks + num_blocks
            is_admitted = beside == 0 or parts.gate.admits(committed - num_blocks, need.num_blocks)
            has_slot = beside < self._rows.num_rows and count >= has_its_slots
            is_in_share = num_freed >= excess or count == num_own
            if has_slot and has_blocks and is_admitted and is_in_share:
                return victims[:count]
        return None if has_its_slots or excess else []

    def first_chunk(self, request: Request) -> tuple[int, int]:
        """Return how many tokens a waiting request would begin with, and behind how many cached ones."""
        sharing = self._parts.sharing
        computed = sharing.num_skipped_tokens(request, sharing.find(request))
        return self._parts.composer.chunk_of(request.num_tokens - computed), computed

    def num_committed_blocks(self) -> int:
        """Return the blocks that are held or that running prompts still need."""
        rows = self._rows.prefilling()
        missing = self._kv.num_missing(rows, self._rows.num_tokens[rows] + 1)
        return self._kv.num_held_blocks + int(missing.sum())

    def _has_room(self, plan: StepPlan) -> bool:
        """Say whether anybody could join the step at all."""
        has_budget = self._parts.composer.num_prompt_tokens_left(plan) > 0
        return has_budget and self._rows.num_free > 0 and self._kv.num_free_blocks > 0

    def _need(self, request: Request, offer: Offer) -> _Need:
        """Work out what admitting a request takes."""
        in_all = self._kv.num_blocks_for(request.num_tokens + 1)
        computed = self._parts.sharing.num_skipped_tokens(request, offer)
        found = offer.found
        if request.swapped is not None:
            found = found[: computed // self._kv.block_size]
        elif offer.fork_from is not None:
            num_shared = computed // self._kv.block_size
            return _Need(num_blocks=in_all - num_shared, num_blocks_now=1, num_computed_tokens=computed)
        num_revived = self._kv.num_revived(found)
        next_blocks = self._kv.num_blocks_for(computed + 1)
        return _Need(
            num_blocks=in_all - len(found) + num_revived,
            num_blocks_now=next_blocks - len(found) + num_revived,
            num_computed_tokens=computed,
            num_swapped_blocks=computed // self._kv.block_size - len(found),
        )

    def _fits(self, plan: StepPlan, request: Request, need: _Need, committed: int | None) -> bool:
        """Say whether a request can join now; `committed` is None where nobody runs beside it."""
        composer = self._parts.composer
        num_now = need.num_blocks_now
        if not composer.is_chunked:
            num_now = need.num_blocks
            if request.num_tokens - need.num_computed_tokens > composer.num_prompt_tokens_left(plan):
                return False
        if num_now > self._kv.num_free_blocks:
            return False
        return committed is None or self._parts.gate.admits(committed, need.num_blocks)

    def _start(self, request: Request, offer: Offer, need: _Need, plan: StepPlan) -> None:
        """Give a request a row, what it brings along, and its first tokens."""
        parts = self._parts
        num_uncached = request.num_tokens - need.num_computed_tokens
        parts.queue.take(request, plan.now, num_uncached_tokens=num_uncached)
        row = self._rows.take(request, need.num_computed_tokens)
        parts.preemptor.resume(request, row, plan.step_id)
        self._bring(request, row, offer, plan)
        parts.sharing.start(row, request, need.num_computed_tokens, need.num_swapped_blocks)
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = plan.now
        plan.announce(request, row)
        parts.composer.add_chunk(plan, row)

    def _bring(self, request: Request, row: int, offer: Offer, plan: StepPlan) -> None:
        """Begin a row's table with what is in the caches already; the blocks were counted before."""
        kv = self._kv
        if request.swapped is not None:
            found = offer.found[: request.num_swapped_tokens // kv.block_size]
            change = kv.swap_in(row, request.swapped, found)
            request.swapped = None
            if change is not None:
                plan.swap_back(change)
                return
        elif offer.fork_from is not None:
            change = kv.fork(offer.fork_from, row, request.num_prompt_tokens - 1)
            if change is not None:
                plan.fork(change)
                return
        else:
            if len(offer.found):
                plan.appends.append(kv.adopt(row, offer.found))
            return
        raise RuntimeError("blocks that were counted as free are not")
