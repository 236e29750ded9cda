"""One scheduler and one runner, stepped together.

Knows how a step goes and what happens if it breaks. Does not know sockets, processes or heartbeats; the
clock is given.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.runner.base import RunnerLost
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


class EngineCore:
    """Requests in, outputs out, one step at a time."""

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

    def schedule(self) -> SchedulerOutput | None:
        """Choose the next step; None if there is nothing to compute."""
        return self.scheduler.schedule(self._clock())

    def run(self, output: SchedulerOutput) -> StepReport:
        """Carry a step out and hand its tokens to their requests."""
        started = self._clock()
        try:
            self._runner.launch(output)
            result = self._runner.sample(None)
        except RunnerLost:
            raise
        except Exception:
            logger.exception("step %d failed; its %d rows are tried alone", output.step_id, len(output.rows))
            result = self._run_alone(output)
        else:
            if self._learning is not None:
                self._learning.observe(output, self._clock() - started, result.copy_seconds)
        ended = self._clock()
        outputs = self.scheduler.update(result, ended)
        return StepReport(outputs=outputs, num_tokens=output.num_tokens, seconds=ended - started)

    def _run_alone(self, output: SchedulerOutput) -> StepResult:
        """Repeat a failed step row by row, so that only the rows that break it end."""
        results: list[StepResult] = []
        failures: list[RowFailure] = []
        for single in split_rows(output):
            try:
                self._runner.launch(single)
                results.append(self._runner.sample(None))
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
