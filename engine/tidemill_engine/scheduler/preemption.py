"""Who gives way when blocks run out, and whether what it has computed is copied or computed again.

Knows the order of victims, tenants' shares, the anchor and costs. Does not know budgets. A request preempted
twice becomes the anchor, one at a time, which is never a victim again: so somebody always finishes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.request import Request, RequestStatus

if TYPE_CHECKING:
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.scheduler.base import PreemptionCosts
    from tidemill_engine.scheduler.block_shares import BlockShares
    from tidemill_engine.scheduler.plan import StepPlan
    from tidemill_engine.scheduler.rows import RowTable
    from tidemill_engine.scheduler.waiting import WaitingQueue
    from tidemill_engine.step import IntArray

logger = logging.getLogger(__name__)

PREEMPTIONS_BEFORE_ANCHOR = 2
SPARED_STEPS = 32
"""A row that was resumed so few steps ago is no victim, unless nothing else moves."""


class Preemptor:
    """Chooses victims and sends them back to the queue."""

    def __init__(
        self,
        rows: RowTable,
        kv: KVCacheManager,
        queue: WaitingQueue,
        costs: PreemptionCosts,
        shares: BlockShares,
    ) -> None:
        self._rows = rows
        self._kv = kv
        self._queue = queue
        self._costs = costs
        self._shares = shares
        self._anchor: Request | None = None
        self._carried: list[IntArray] = []
        self.num_preemptions = 0
        self.num_swapped = 0

    def choose(self, step_id: int, *, spares_resumed: bool) -> int | None:
        """Return the last running row in the order that may be preempted; None if there is none.

        Tenants whose outputs have grown beyond their share of the blocks pay first.
        """
        if self._rows.num_running < 2:
            return None
        victims = self._victims(step_id, spares_resumed=spares_resumed)
        overgrown = {
            index for index in {victim.tenant_index for victim in victims} if self._shares.is_over(index)
        }
        victims = [victim for victim in victims if victim.tenant_index in overgrown] or victims
        return max(victims, key=self._queue.victim_key).row if victims else None

    def lower_rows(self, request: Request, step_id: int) -> list[int]:
        """Return the rows of lower classes than a waiting request's, the last in the order first."""
        victims = self._victims(step_id, spares_resumed=True)
        own = self._queue.victim_key(request).priority_class
        lower = [victim for victim in victims if self._queue.victim_key(victim).priority_class > own]
        lower.sort(key=self._queue.victim_key, reverse=True)
        return [victim.row for victim in lower if victim.row is not None]

    def _victims(self, step_id: int, *, spares_resumed: bool) -> list[Request]:
        """Return the running requests that may be preempted."""
        rows = self._rows.running()
        if spares_resumed:
            rows = rows[step_id - self._rows.resumed_at_step[rows] >= SPARED_STEPS]
        requests = [self._rows.request_at(row) for row in rows.tolist()]
        return [request for request in requests if request is not self._anchor]

    def preempt(self, row: int, plan: StepPlan) -> None:
        """Send a row's request back to wait; the caller stops the row."""
        request = self._rows.request_at(row)
        is_swapped = self._swap_out(request, row, plan)
        request.status = RequestStatus.SWAPPED if is_swapped else RequestStatus.PREEMPTED
        request.num_tokens = int(self._rows.num_known_tokens[row])
        request.num_preemptions += 1
        if request.num_preemptions >= PREEMPTIONS_BEFORE_ANCHOR and self._anchor is None:
            self._anchor = request
        logger.info(
            "request %s preempted by %s at step %d with %d tokens: %d blocks free (time %d for it)",
            request.request_id,
            "swap" if is_swapped else "recompute",
            plan.step_id,
            request.num_tokens,
            self._kv.num_free_blocks,
            request.num_preemptions,
        )
        self.num_preemptions += 1
        self._queue.requeue(request, plan.now)

    def resume(self, request: Request, row: int, step_id: int) -> None:
        """Note that a request runs again; its place in the CPU pool is the caller's."""
        if request.status is RequestStatus.SWAPPED:
            self.num_swapped -= 1
        if request.num_preemptions:
            self._rows.resumed_at_step[row] = step_id

    def forget(self, request: Request) -> None:
        """Take an ended request out of everything that is kept here."""
        if self._anchor is request:
            self._anchor = None
        if request.status is RequestStatus.SWAPPED and request.swapped is not None:
            self._kv.swap.free(request.swapped)
            request.swapped = None
            self.num_swapped -= 1

    def hand_over(self, plan: StepPlan) -> None:
        """Give a plan the copies of an earlier one that came to nothing."""
        plan.swap_out += self._carried
        self._carried = []

    def carry(self, plan: StepPlan) -> None:
        """Keep the copies of a plan that comes to nothing for the next one."""
        self._carried = plan.swap_out

    def _swap_out(self, request: Request, row: int, plan: StepPlan) -> bool:
        """Copy a row's tokens out if that is the cheaper way and there is room; say whether."""
        num_tokens = int(self._rows.num_computed_tokens[row])
        num_blocks = self._kv.num_blocks_for(num_tokens)
        if num_tokens == 0 or num_blocks > self._kv.swap.num_free:
            return False
        if self._costs.swap_seconds(num_blocks) >= self._costs.recompute_seconds(num_tokens):
            return False
        change = self._kv.swap_out(row, num_tokens)
        if change is None:
            return False
        plan.swap_out.append(change.copies)
        request.swapped = np.ascontiguousarray(change.copies[:, 1])
        request.num_swapped_tokens = num_tokens
        self.num_swapped += 1
        return True
