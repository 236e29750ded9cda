"""Continuous batching: each step takes decodes, then running prefills, then new requests, in one budget.

There is no prefill phase and no decode phase: each running row has `num_computed_tokens`, which catches up
with its `num_tokens`. When it does, the row asks for logits and is promised one more token, so that the
next step can be scheduled before the token is known.

Knows the order of these things. What running rows get is `RunningWork`'s business, who is admitted
`Intake`'s, and who gives way `Preemptor`'s.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill_engine.scheduler.admission import AdmissionGate
from tidemill_engine.scheduler.block_shares import BlockShares
from tidemill_engine.scheduler.crowd import Crowd
from tidemill_engine.scheduler.intake import Intake
from tidemill_engine.scheduler.lifecycle import RequestLifecycle
from tidemill_engine.scheduler.parts import Parts
from tidemill_engine.scheduler.plan import StepPlan
from tidemill_engine.scheduler.preemption import Preemptor
from tidemill_engine.scheduler.running import RunningWork

if TYPE_CHECKING:
    from tidemill_engine.config import SchedulerConfig
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.messages import EngineRequest, RequestOutput
    from tidemill_engine.request import Request, RequestLimits
    from tidemill_engine.scheduler.base import SchedulerStats
    from tidemill_engine.scheduler.seams import Seams
    from tidemill_engine.scheduler.step_model import StepFeatures
    from tidemill_engine.step import SchedulerOutput


class ContinuousScheduler(RequestLifecycle):
    """The default scheduler, under any order of the waiting queue."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        limits: RequestLimits,
        seams: Seams | None = None,
    ) -> None:
        super().__init__(config, kv, limits, seams)
        self._gate = AdmissionGate(config.watermarks, kv.num_blocks, config.admission)
        shares = BlockShares(self._rows, kv, self._queue, self._gate.most_blocks)
        self._preemptor = Preemptor(self._rows, kv, self._queue, self._seams.costs, shares)
        self._chunks = self._seams.make_chunks(self._rows)
        parts = Parts(
            rows=self._rows,
            kv=kv,
            queue=self._queue,
            gate=self._gate,
            shares=shares,
            sharing=self._sharing,
            preemptor=self._preemptor,
            composer=self._composer,
        )
        self._intake = Intake(parts)
        self._is_preempting_lower_classes = config.is_preempting_lower_classes
        self._running = RunningWork(parts, self._chunks, self._preempt)
        self._token_budget = config.step_tokens(limits.max_sequence_tokens)
        self._max_compacted_blocks = 0
        self._crowd = Crowd(max_tokens=self._token_budget, max_requests=config.max_num_seqs)

    def add(self, message: EngineRequest, seed: int) -> RequestOutput | None:
        """Take a request in; the output, if any, refuses it."""
        refused = super().add(message, seed)
        if refused is None:
            request = self._requests[message.request_id]
            self._sharing.name(request)
            if self._rows.num_running == 0 and request.sibling == 0:
                slo = request.ttft_slo_seconds
                self._crowd.add(
                    *self._intake.first_chunk(request),
                    leads=request.awaited,
                    deadline=math.inf if slo is None else request.arrival_time + slo,
                )
        return refused

    def crowd(self) -> StepFeatures | None:
        """Return the step that begins those who have come while nobody ran, if it may wait for more."""
        return self._crowd.step if self._rows.num_running == 0 else None

    def crowd_deadline(self) -> float:
        """Return by when the first of the crowd is promised its first token; infinite where none is."""
        return self._crowd.deadline

    def compact(self, max_blocks: int) -> None:
        """Let the next step move up to so many blocks, so that rows' blocks become neighbours."""
        self._max_compacted_blocks = max_blocks

    def schedule(self, now: float) -> SchedulerOutput | None:
        """Choose the next step's tokens; None if there is nothing to compute now."""
        budget = self._token_budget
        self._crowd.clear()
        plan = StepPlan(step_id=self._step_id, now=now, token_budget=budget, prefill_budget=budget)
        self._preemptor.hand_over(plan)
        if self._is_preempting_lower_classes:
            self._make_way(plan)
        self._running.fill(plan)
        self._intake.admit(plan)
        if plan.is_empty and not self._in_flight:
            self._running.unblock(plan)
        if plan.is_empty:
            self._preemptor.carry(plan)
            return None
        if self._max_compacted_blocks:
            self._running.compact(plan, self._max_compacted_blocks)
            self._max_compacted_blocks = 0
        return self._launch(plan)

    def stats(self) -> SchedulerStats:
        """Return the figures."""
        figures = super().stats()
        return replace(
            figures,
            num_waiting=figures.num_waiting - self._preemptor.num_swapped,
            num_swapped=self._preemptor.num_swapped,
            num_preemptions=self._preemptor.num_preemptions,
            is_admission_open=self._gate.is_open,
            effective_batch_tokens=self._chunks.effective_tokens,
        )

    def _make_way(self, plan: StepPlan) -> None:
        """Let requests of lower classes wait again where the first that waits can't join beside them."""
        for row in self._intake.rows_in_the_way(plan):
            self._preemptor.preempt(row, plan)
            self._stop_row(row)

    def _preempt(self, row: int, plan: StepPlan) -> None:
        """Take a row's blocks away for want of others; its request waits again, and nobody joins."""
        self._preemptor.preempt(row, plan)
        plan.num_preempted += 1
        self._gate.close(plan.step_id)
        self._stop_row(row)

    def _finish(self, request: Request) -> None:
        """Take an ended request off the books; its row follows when no step can touch it."""
        self._preemptor.forget(request)
        self._crowd.clear()
        super()._finish(request)
