"""One scheduler and one runner, stepped together.

Knows how a step goes and what happens if it breaks. Does not know sockets, processes or heartbeats; the
clock is given.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.runner.base import RunnerLost
from tidemill_engine.scheduler.crowd import within
from tidemill_engine.step import BlockAppends, RowFailure, SchedulerOutput, StepResult, int_array, no_pairs

if TYPE_CHECKING:
    from tidemill_engine.core.learning import Learning
    from tidemill_engine.messages import EngineRequest, RequestOutput
    from tidemill_engine.runner.base import ModelRunner
    from tidemill_engine.scheduler.base import Scheduler, StepOutputs
    from tidemill_engine.scheduler.step_model import StepModel

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step did: outputs to send and figures for metrics and heartbeat."""

    outputs: StepOutputs
    num_tokens: int
    seconds: float


@dataclass(kw_only=True)
class _InFlight:
    """A launched step; it has a result already if it had to be computed row by row."""

    output: SchedulerOutput
    started: float
    result: StepResult | None


class EngineCore:
    """Requests in, outputs out, step after step, as many in flight as the runner may have."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        clock: Clock,
        *,
        seed: int = 0,
        learning: Learning | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._learning = learning
        self._in_flight: deque[_InFlight] = deque()
        self._last_ended = float("-inf")
        self._seeds = random.Random(seed)  # noqa: S311 - reproducible on purpose

    @property
    def step_model(self) -> StepModel | None:
        """Return what was learned of the steps' times, where it is learned."""
        return self._learning.model if self._learning is not None else None

    def add(self, request: EngineRequest) -> RequestOutput | None:
        """Take a request in; the output, if any, refuses it."""
        seed = request.sampling.seed
        return self.scheduler.add(request, self._seeds.getrandbits(63) if seed is None else seed)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request; None if it has ended already."""
        return self.scheduler.abort(request_id)

    def crowd_seconds(self) -> float:
        """Return what the step is predicted to take that may wait for more requests; 0 where none may.

        It is less where a wait for a tenth of it would make a promised first token late.
        """
        step, model = self.scheduler.crowd(), self.step_model
        if step is None or model is None or not model.is_fitted:
            return 0.0
        return within(model.predict(step), self.scheduler.crowd_deadline() - self._clock())

    def schedule(self) -> SchedulerOutput | None:
        """Choose the next step; None if there is nothing to compute."""
        return self.scheduler.schedule(self._clock())

    @property
    def num_in_flight(self) -> int:
        """Return how many steps have been launched and not ended."""
        return len(self._in_flight)

    def has_work(self) -> bool:
        """Say whether any request or step has not ended."""
        return bool(self._in_flight) or self.scheduler.has_work()

    def run(self, output: SchedulerOutput) -> StepReport:
        """Carry a step out, alone in flight, and hand its tokens to their requests."""
        self._launch(output)
        return self._finish()

    def advance(self, output: SchedulerOutput | None) -> StepReport | None:
        """Launch the next step, if there is one, and end the oldest once as many are in flight as may be.

        None where no step has ended yet. Without a step to launch, one must be in flight.
        """
        if output is not None:
            self._launch(output)
        if output is not None and len(self._in_flight) < self._runner.info.depth:
            return None
        return self._finish()

    def _launch(self, output: SchedulerOutput) -> None:
        """Start a step; one that can't be is tried row by row, once those before it have their tokens."""
        started = self._clock()
        result: StepResult | None = None
        try:
            self._runner.launch(output)
        except RunnerLost:
            raise
        except Exception as error:
            for step in self._in_flight:
                step.result = step.result or self._runner.sample(None)
            result = self._run_alone(output, error)
        self._in_flight.append(_InFlight(output=output, started=started, result=result))

    def _finish(self) -> StepReport:
        """End the oldest step. Its time is what it took of the runner, beside the step before it."""
        step = self._in_flight.popleft()
        is_whole = step.result is None
        if step.result is None:
            try:
                step.result = self._runner.sample(None)
            except RunnerLost:
                raise
            except Exception as error:
                if self._in_flight:
                    raise RunnerLost(f"a step failed with another behind it: {error}") from error
                is_whole = False
                step.result = self._run_alone(step.output, error)
        ended = self._clock()
        seconds = ended - max(step.started, self._last_ended)
        self._last_ended = ended
        if self._learning is not None and is_whole:
            result = step.result
            self._learning.observe(step.output, seconds, result.num_copied, result.copy_seconds)
        outputs = self.scheduler.update(step.result, ended)
        return StepReport(outputs=outputs, num_tokens=step.output.num_tokens, seconds=seconds)

    def _run_alone(self, output: SchedulerOutput, cause: Exception) -> StepResult:
        """Repeat a failed step row by row, so that only the rows that break it end."""
        logger.error(
            "step %d failed; its %d rows are tried alone", output.step_id, len(output.rows), exc_info=cause
        )
        results: list[StepResult] = []
        failures: list[RowFailure] = []
        for single in split_rows(output):
            try:
                self._runner.launch(single)
                results.append(self._runner.sample(None))
            except RunnerLost:
                raise
            except Exception as error:
                row = int(single.rows[0])
                logger.exception("row %d fails alone, too", row)
                failures.append(RowFailure(row=row, message=f"the model failed on this request: {error}"))
        return StepResult(
            step_id=output.step_id,
            rows=int_array(np.concatenate([result.rows for result in results] or [int_array()])),
            token_ids=np.concatenate([result.token_ids for result in results] or [int_array([[]])]),
            num_accepted=int_array(
                np.concatenate([result.num_accepted for result in results] or [int_array()])
            ),
            failures=(*failures, *(failure for result in results for failure in result.failures)),
            logprobs={row: found for result in results for row, found in result.logprobs.items()},
        )


def split_rows(output: SchedulerOutput) -> list[SchedulerOutput]:
    """Return one step per row of a step; each carries what concerns its row only, and no copies again."""
    starts = np.cumsum(output.num_scheduled_tokens) - output.num_scheduled_tokens
    return [
        _single_row(output, index, int(start), int(start + count))
        for index, (start, count) in enumerate(zip(starts, output.num_scheduled_tokens, strict=True))
    ]


def _single_row(output: SchedulerOutput, index: int, start: int, end: int) -> SchedulerOutput:
    """Return the part of a step that computes flat tokens `start .. end`, which belong to one row."""
    row = int(output.rows[index])
    appends = output.block_appends
    mine = appends.rows == row
    wanted = output.logit_rows[(output.logit_rows >= start) & (output.logit_rows < end)]
    only = slice(index, index + 1)
    return replace(
        output,
        rows=output.rows[only],
        num_scheduled_tokens=output.num_scheduled_tokens[only],
        num_draft_tokens=output.num_draft_tokens[only],
        start_pos=output.start_pos[only],
        adapter_slot=output.adapter_slot[only],
        logit_rows=wanted - start,
        new_rows=tuple(new_row for new_row in output.new_rows if new_row.row == row),
        block_appends=BlockAppends(
            rows=appends.rows[mine], positions=appends.positions[mine], block_ids=appends.block_ids[mine]
        ),
        swap_out=no_pairs(),
        swap_in=no_pairs(),
        block_copies=no_pairs(),
        mask_rows=output.mask_rows[output.mask_rows == row],
        num_padding_tokens=0,
        num_padding_pairs=0,
    )
