"""Continuous batching: each step takes decodes, then running prefills, then new requests, in one budget.

There is no prefill phase and no decode phase: each running row has `num_computed_tokens`, which catches up
with its `num_tokens`. When it does, the row asks for logits and is promised one more token, so that the
next step can be scheduled before the token is known.

Blocks run out -> the last in order is preempted and recomputed later, in its old place. A request preempted
twice becomes the anchor, which is never a victim again, one at a time: so somebody always finishes.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from tidemill_engine.messages import RequestOutput
from tidemill_engine.request import Request, RequestLimits, RequestStatus, refusal
from tidemill_engine.scheduler.admission import AdmissionGate
from tidemill_engine.scheduler.base import SchedulerStats
from tidemill_engine.scheduler.outcome import Outcomes
from tidemill_engine.scheduler.plan import StepPlan
from tidemill_engine.scheduler.queue import FifoQueue
from tidemill_engine.scheduler.rows import InFlightStep, RowTable
from tidemill_engine.step import IntArray, NewRow, SchedulerOutput, StepResult, int_array

if TYPE_CHECKING:
    from tidemill_engine.config import SchedulerConfig
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.messages import EngineRequest

logger = logging.getLogger(__name__)

PREEMPTIONS_BEFORE_ANCHOR = 2


class ContinuousScheduler:
    """The default scheduler, first come first served."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, limits: RequestLimits) -> None:
        self._config = config
        self._kv = kv
        self._limits = limits
        self._gate = AdmissionGate(config.watermarks, kv.num_blocks)
        self._rows = RowTable(config.max_num_seqs)
        self._queue = FifoQueue()
        self._requests: dict[str, Request] = {}
        self._in_flight: deque[InFlightStep] = deque()
        self._anchor: Request | None = None
        self._outcomes = Outcomes()
        self._num_added = 0
        self._num_preemptions = 0
        self._step_id = 0

    def add(self, message: EngineRequest, seed: int) -> RequestOutput | None:
        """Take a request in; the output, if any, refuses it."""
        reason = refusal(message, self._limits)
        if message.request_id in self._requests:
            reason = "a request with this id is being served already"
        if reason is not None:
            logger.info("request %s refused: %s", message.request_id, reason)
            return RequestOutput(
                request_id=message.request_id, token_ids=[], finish_reason="error", error=reason
            )
        request = Request(message, order=self._num_added, seed=seed, limits=self._limits)
        self._num_added += 1
        self._requests[request.request_id] = request
        self._queue.push(request)
        return None

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is; None if there is no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        logger.info("request %s aborted while %s", request_id, request.status.value)
        self._finish(request)
        return RequestOutput(request_id=request_id, token_ids=[], finish_reason="abort")

    def schedule(self, now: float) -> SchedulerOutput | None:
        """Choose the next step's tokens; None if there is nothing to compute now."""
        plan = StepPlan(step_id=self._step_id, token_budget=self._config.max_num_batched_tokens)
        self._schedule_decodes(plan)
        self._schedule_prefills(plan)
        self._admit(plan, now)
        if plan.is_empty:
            self._unblock(plan)
        return None if plan.is_empty else self._launch(plan)

    def update(self, result: StepResult, now: float) -> list[RequestOutput]:
        """Take in the oldest step's result and say what each request got."""
        step = self._in_flight.popleft()
        if step.step_id != result.step_id:
            raise RuntimeError(f"the result of step {result.step_id} came when {step.step_id} was due")
        outputs = self._outcomes.failures(result, self._rows)
        outputs += self._outcomes.tokens(result, self._rows, now)
        for output in outputs:
            if output.finish_reason is not None:
                self._finish(self._requests[output.request_id])
        self._retire(step)
        return outputs

    def has_work(self) -> bool:
        """Say whether any request has not ended."""
        return bool(self._requests)

    def stats(self) -> SchedulerStats:
        """Return the figures."""
        return SchedulerStats(
            num_running=self._rows.num_running,
            num_waiting=len(self._queue),
            num_free_blocks=self._kv.num_free_blocks,
            num_total_blocks=self._kv.num_blocks,
            num_preemptions=self._num_preemptions,
            prompt_tokens=self._outcomes.prompt_tokens,
            generation_tokens=self._outcomes.generation_tokens,
            waiting_prompt_tokens=self._queue.num_tokens,
            is_admission_open=self._gate.is_open,
        )

    def take_inter_token_seconds(self) -> list[float]:
        """Return and forget the intervals between output tokens since the last call."""
        return self._outcomes.take_inter_token_seconds()

    def check_integrity(self) -> None:
        """Raise if blocks or rows are lost or used twice."""
        self._kv.check_integrity()
        num_taken = sum(request is not None for request in self._rows.requests)
        if num_taken + self._rows.num_free != self._config.max_num_seqs:
            raise RuntimeError("rows are neither free nor taken")
        if not self._requests and not self._in_flight and self._kv.num_held_blocks:
            raise RuntimeError(f"{self._kv.num_held_blocks} blocks are held while nobody is served")

    def _schedule_decodes(self, plan: StepPlan) -> None:
        """Give every decoding row its next token, preempting from the end of the order if blocks run out."""
        rows = self._rows.decoding()[: plan.token_budget]
        while len(rows):
            missing = self._kv.num_missing(rows, self._rows.num_computed_tokens[rows] + 1)
            if int(missing.sum()) <= self._kv.num_free_blocks + self._num_retiring_blocks():
                break
            victim = self._choose_victim()
            if victim is None:
                break
            self._preempt(victim, plan)
            rows = rows[rows != victim]
        if len(rows) == 0:
            return
        rows = rows[(missing == 0) | (missing.cumsum() <= self._kv.num_free_blocks)]
        self._add(plan, rows, int_array([1]).repeat(len(rows)))

    def _schedule_prefills(self, plan: StepPlan) -> None:
        """Continue prompts that are under way, unless decodes are short of blocks."""
        if not plan.is_empty and self._gate.is_critical(self._kv.num_held_blocks):
            return
        for row in self._rows.prefilling():
            if plan.token_budget == 0:
                return
            self._add_chunk(plan, int(row))

    def _admit(self, plan: StepPlan, now: float) -> None:
        """Let waiting requests in, in order, as long as budget, rows and watermarks allow."""
        if plan.num_preempted:
            return
        committed = self._num_committed_blocks()
        self._gate.refresh(plan.step_id, committed)
        while plan.token_budget > 0 and self._rows.num_free:
            request = self._queue.peek()
            if request is None or request.row is not None or self._kv.num_free_blocks == 0:
                return
            needed = self._kv.num_blocks_for(request.num_tokens + 1)
            if self._rows.num_running and not self._gate.admits(committed, needed):
                return
            self._start(self._queue.pop(), plan, now)
            committed += needed

    def _start(self, request: Request, plan: StepPlan, now: float) -> None:
        """Give a request a row and its first chunk."""
        row = self._rows.take(request)
        request.row = row
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
        plan.new_rows.append(
            NewRow(
                row=row,
                token_ids=request.all_token_ids(),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling=request.sampling,
                seed=request.seed,
                sibling=request.sibling,
            )
        )
        self._add_chunk(plan, row)

    def _add_chunk(self, plan: StepPlan, row: int) -> None:
        """Add as much of a row's prompt as budget and free blocks allow, maybe nothing."""
        computed = int(self._rows.num_computed_tokens[row])
        wanted = int(self._rows.num_tokens[row]) - computed
        count = min(wanted, plan.token_budget, self._kv.room_for(row) - computed)
        if count > 0:
            self._add(plan, int_array([row]), int_array([count]))

    def _add(self, plan: StepPlan, rows: IntArray, counts: IntArray) -> None:
        """Add rows to the step with the blocks that their tokens need, which must be free."""
        if len(rows) == 0:
            return
        appends = self._kv.append(rows, self._rows.num_computed_tokens[rows] + counts)
        if appends is None:
            raise RuntimeError("blocks that were counted as free are not")
        plan.add(rows, counts, appends)

    def _launch(self, plan: StepPlan) -> SchedulerOutput:
        """Count the step as computed, promise its tokens and put it in flight."""
        output = plan.finish(self._rows.num_computed_tokens, self._rows.num_tokens)
        sampled = output.rows[
            output.start_pos + output.num_scheduled_tokens == self._rows.num_tokens[output.rows]
        ]
        self._rows.num_computed_tokens[output.rows] += output.num_scheduled_tokens
        self._rows.num_tokens[sampled] += 1
        self._rows.num_in_flight[output.rows] += 1
        self._in_flight.append(InFlightStep(step_id=output.step_id, rows=output.rows, sampled_rows=sampled))
        self._step_id += 1
        return output

    def _unblock(self, plan: StepPlan) -> None:
        """Break a deadlock: rows run, none can go on and nothing is in flight, so the last one makes room."""
        while plan.is_empty and not self._in_flight:
            victim = self._choose_victim()
            if victim is None:
                return
            self._preempt(victim, plan)
            self._schedule_decodes(plan)
            self._schedule_prefills(plan)

    def _choose_victim(self) -> int | None:
        """Return the last running row that is not the anchor; None if only one row runs."""
        rows = self._rows.running()
        if len(rows) < 2:
            return None
        last = int(rows[-1])
        return int(rows[-2]) if self._rows.requests[last] is self._anchor else last

    def _preempt(self, row: int, plan: StepPlan) -> None:
        """Take a row's blocks away; its request waits in its old place and will be recomputed."""
        request = self._rows.requests[row]
        if request is None:
            raise RuntimeError(f"row {row} is free and can't be preempted")
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        if request.num_preemptions >= PREEMPTIONS_BEFORE_ANCHOR and self._anchor is None:
            self._anchor = request
        logger.info(
            "request %s preempted at step %d with %d tokens: %d blocks free (time %d for it)",
            request.request_id,
            plan.step_id,
            request.num_tokens,
            self._kv.num_free_blocks,
            request.num_preemptions,
        )
        self._num_preemptions += 1
        plan.num_preempted += 1
        self._gate.close(plan.step_id)
        self._queue.push(request)
        self._stop_row(row)

    def _finish(self, request: Request) -> None:
        """Take an ended request off the books; its row follows when no step can touch it."""
        self._queue.remove(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]
        if self._anchor is request:
            self._anchor = None
        if request.row is not None:
            self._stop_row(request.row)

    def _stop_row(self, row: int) -> None:
        """Schedule a row no more and free it as soon as it may be."""
        self._rows.stop(row)
        if self._rows.num_in_flight[row] == 0:
            self._free_row(row)

    def _free_row(self, row: int) -> None:
        """Give a row and its blocks to whoever comes next."""
        request = self._rows.requests[row]
        if request is not None:
            request.row = None
        self._kv.release(row)
        self._rows.free(row)

    def _retire(self, step: InFlightStep) -> None:
        """Forget a step and free the rows that only it was still touching."""
        self._rows.num_in_flight[step.rows] -= 1
        idle = step.rows[(self._rows.num_in_flight[step.rows] == 0) & ~self._rows.is_running[step.rows]]
        for row in idle:
            self._free_row(int(row))

    def _num_retiring_blocks(self) -> int:
        """Return the blocks of stopped rows, which come back when the steps in flight retire."""
        return int(self._kv.num_held[~self._rows.is_running].sum())

    def _num_committed_blocks(self) -> int:
        """Return the blocks that are held or that running prompts still need."""
        rows = self._rows.prefilling()
        missing = self._kv.num_missing(rows, self._rows.num_tokens[rows] + 1)
        return self._kv.num_held_blocks + int(missing.sum())
