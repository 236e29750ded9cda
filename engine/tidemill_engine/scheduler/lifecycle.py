"""What every scheduler here does alike: requests from `add` to their last output, rows, steps in flight.

Knows when a row and its blocks may be given to someone else. What goes into a step is the subclass's. What a
result means is `Outcomes`' business, who is found in the cache `PrefixSharing`'s.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.messages import RequestOutput
from tidemill_engine.request import Request, RequestLimits, RequestStatus, refusal
from tidemill_engine.scheduler.base import SchedulerStats, StepOutputs
from tidemill_engine.scheduler.compose import Composer
from tidemill_engine.scheduler.outcome import Outcomes
from tidemill_engine.scheduler.rows import InFlightStep, RowTable
from tidemill_engine.scheduler.seams import Seams
from tidemill_engine.scheduler.sharing import PrefixSharing
from tidemill_engine.scheduler.waiting import WaitingQueue
from tidemill_engine.step import SchedulerOutput, StepResult

if TYPE_CHECKING:
    from tidemill_engine.config import SchedulerConfig
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.messages import EngineRequest
    from tidemill_engine.scheduler.plan import StepPlan
    from tidemill_engine.scheduler.step_model import StepFeatures

logger = logging.getLogger(__name__)


class RequestLifecycle(ABC):
    """A scheduler without the choice of what a step computes."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        limits: RequestLimits,
        seams: Seams | None = None,
    ) -> None:
        self._limits = limits
        self._seams = seams or Seams()
        self._kv = kv
        # One block more than is needed, so that rows do not stand at a power of two's distance: columns of
        # such tables fall into the same few lines of a processor's cache.
        max_tokens = (kv.num_blocks_for(limits.max_sequence_tokens) + 1) * kv.block_size
        self._rows = RowTable(config.max_num_seqs, max_tokens)
        self._sharing = PrefixSharing(self._rows, kv)
        self._queue = WaitingQueue(
            config.order,
            max_chunk_tokens=config.chunk_tokens,
            max_num_seqs=config.max_num_seqs,
            estimates=self._seams.estimates,
            affinity=self._sharing.is_affine if kv.roots is not None else None,
        )
        max_chunk_tokens = config.chunk_tokens if config.is_chunked_prefill else None
        self._composer = Composer(self._rows, kv, max_chunk_tokens=max_chunk_tokens)
        self._outcomes = Outcomes()
        self._requests: dict[str, Request] = {}
        self._in_flight: deque[InFlightStep] = deque()
        self._stopping: set[int] = set()
        """Stopped rows that steps in flight still touch."""
        self._num_added = 0
        self._num_padding_tokens = 0
        self._step_id = 0

    @abstractmethod
    def schedule(self, now: float) -> SchedulerOutput | None:
        """Choose the next step's tokens; None if there is nothing to compute now."""

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
        self._queue.push(request, message.arrival_time)
        return None

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is; None if there is no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        logger.info("request %s aborted while %s", request_id, request.status.value)
        self._finish(request)
        return RequestOutput(request_id=request_id, token_ids=[], finish_reason="abort")

    def update(self, result: StepResult, now: float) -> StepOutputs:
        """Take in the oldest step's result and say what each request got."""
        step = self._in_flight.popleft()
        if step.step_id != result.step_id:
            raise RuntimeError(f"the result of step {result.step_id} came when {step.step_id} was due")
        failed = {failure.row for failure in result.failures}
        self._sharing.settle(step, failed)
        errors = self._outcomes.failures(result, self._rows)
        for row in failed:
            self._sharing.distrust(row)
        for output in errors:
            self._finish(self._requests[output.request_id])
        outputs, taken = self._outcomes.tokens(result, self._rows, now)
        tenants = self._rows.tenant_index[taken.rows]
        is_single = result.token_ids.shape[1] == 1
        self._queue.charge_outputs(tenants if is_single else np.repeat(tenants, taken.counts))
        for output in outputs.special:
            if output.finish_reason is not None:
                request = self._requests[output.request_id]
                self._finish(request)
                self._seams.on_end(request)
        self._retire(step)
        outputs.special.extend(errors)
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
            num_preemptions=0,
            prompt_tokens=self._outcomes.prompt_tokens,
            generation_tokens=self._outcomes.generation_tokens,
            waiting_prompt_tokens=self._queue.num_tokens + self._num_tokens_under_way(),
            is_admission_open=True,
            prefix_queries_tokens=self._sharing.queries_tokens,
            prefix_hits_tokens=self._sharing.hits_tokens,
            num_swap_blocks=self._kv.swap.num_blocks,
            num_free_swap_blocks=self._kv.swap.num_free,
            num_cached_blocks=self._kv.num_cached_blocks,
            kv_fragmentation_ratio=self._kv.fragmentation_ratio(),
            num_hopeless=self._queue.num_hopeless,
            padding_tokens=self._num_padding_tokens,
        )

    def _num_tokens_under_way(self) -> int:
        """Return how many tokens of running prompts are still to compute."""
        rows = self._rows.prefilling()
        return int((self._rows.num_tokens[rows] - self._rows.num_computed_tokens[rows]).sum())

    def wait_seconds(self, _now: float) -> float:
        """Return that nobody is held back on purpose."""
        return 0.0

    def crowd(self) -> StepFeatures | None:
        """Return that no step should wait for others."""
        return None

    def crowd_deadline(self) -> float:
        """Return that nobody who waits for others is promised anything."""
        return math.inf

    def take_inter_token_seconds(self) -> list[float]:
        """Return and forget the intervals between output tokens since the last call."""
        return self._outcomes.take_inter_token_seconds()

    def check_integrity(self) -> None:
        """Raise if blocks or rows are lost or used twice."""
        self._kv.check_integrity()
        num_taken = sum(request is not None for request in self._rows.requests)
        if num_taken + self._rows.num_free != self._rows.num_rows:
            raise RuntimeError("rows are neither free nor taken")
        if self._requests or self._in_flight:
            return
        if self._kv.num_held_blocks or self._kv.swap.num_held:
            raise RuntimeError(
                f"{self._kv.num_held_blocks} blocks and {self._kv.swap.num_held} places of the CPU pool are "
                "held while nobody is served"
            )
        self._sharing.check_idle()

    def _launch(self, plan: StepPlan) -> SchedulerOutput:
        """Count the step as computed, promise its tokens and put it in flight."""
        rows = self._rows
        step = plan.finish(rows.num_computed_tokens, rows.num_tokens)
        output = step.output
        rows.num_computed_tokens[output.rows] = step.ends
        all_sample = len(step.samples) == len(output.rows)
        rows.num_tokens[output.rows if all_sample else output.rows[step.samples]] += 1
        rows.num_in_flight[output.rows] += 1
        self._in_flight.append(
            InFlightStep(
                step_id=output.step_id, rows=output.rows, ends=step.ends, num_compacted=plan.num_compacted
            )
        )
        self._num_padding_tokens += output.num_padding_tokens
        self._kv.swap.end_step()
        self._step_id += 1
        return output

    def _finish(self, request: Request) -> None:
        """Take an ended request off the books; its row follows when no step can touch it."""
        self._queue.remove(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]
        if request.row is not None:
            request.num_tokens = int(self._rows.num_known_tokens[request.row])
            self._rows.close(request.row)
            self._stop_row(request.row)

    def _stop_row(self, row: int) -> None:
        """Schedule a row no more and free it as soon as it may be."""
        self._rows.stop(row)
        self._sharing.stop(row, self._rows.request_at(row))
        if self._rows.num_in_flight[row] == 0:
            self._free_row(row)
        else:
            self._stopping.add(row)

    def _free_row(self, row: int) -> None:
        """Give a row and its blocks to whoever comes next."""
        self._kv.release(row)
        self._rows.free(row)

    def _retire(self, step: InFlightStep) -> None:
        """Forget a step and free the rows that only it was still touching."""
        self._rows.num_in_flight[step.rows] -= 1
        for _ in range(step.num_compacted):
            self._kv.release_moved()
        if self._stopping:
            idle = [row for row in self._stopping if self._rows.num_in_flight[row] == 0]
            self._stopping.difference_update(idle)
            for row in idle:
                self._free_row(row)
