"""From a step's result to what each request is told, and the counters that follow.

Knows rows' requests and when they end. Does not free anything: the scheduler does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidemill_engine.messages import RequestOutput, TokenLogprobs

if TYPE_CHECKING:
    from tidemill_engine.request import Finish, Request
    from tidemill_engine.scheduler.rows import RowTable
    from tidemill_engine.step import StepResult

logger = logging.getLogger(__name__)

_MAX_INTERVALS = 4096


class Outcomes:
    """Turns results into outputs and counts prompt and output tokens."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._inter_token_seconds: list[float] = []

    def failures(self, result: StepResult, rows: RowTable) -> list[RequestOutput]:
        """Return the errors of rows that could not be computed."""
        outputs = []
        for failure in result.failures:
            request = rows.requests[failure.row]
            if request is None or request.is_finished:
                continue
            logger.warning("request %s failed: %s", request.request_id, failure.message)
            outputs.append(
                RequestOutput(
                    request_id=request.request_id,
                    token_ids=[],
                    finish_reason="error",
                    error=failure.message,
                )
            )
        return outputs

    def tokens(self, result: StepResult, rows: RowTable, now: float) -> list[RequestOutput]:
        """Hand the step's tokens to their requests; those of requests that have ended are dropped."""
        outputs = []
        steps = zip(
            result.rows.tolist(), result.token_ids.tolist(), result.num_accepted.tolist(), strict=True
        )
        for row, token_ids, num_accepted in steps:
            request = rows.requests[row]
            if request is None or request.is_finished:
                continue
            accepted, finish = _append_all(request, token_ids[:num_accepted])
            outputs.append(self._output(request, accepted, finish, result.logprobs.get(row, ())))
            self._note_interval(rows, row, len(accepted), now)
        return outputs

    def take_inter_token_seconds(self) -> list[float]:
        """Return and forget the intervals between output tokens since the last call."""
        taken, self._inter_token_seconds = self._inter_token_seconds, []
        return taken

    def _output(
        self,
        request: Request,
        token_ids: list[int],
        finish: Finish | None,
        logprobs: tuple[TokenLogprobs, ...],
    ) -> RequestOutput:
        """Make one request's output; its first one carries the time it queued."""
        self.generation_tokens += len(token_ids)
        queue_seconds = None
        if not request.was_answered:
            request.was_answered = True
            self.prompt_tokens += request.num_prompt_tokens
            if request.first_scheduled_time is not None:
                queue_seconds = max(0.0, request.first_scheduled_time - request.arrival_time)
        return RequestOutput(
            request_id=request.request_id,
            token_ids=token_ids,
            logprobs=list(logprobs[: len(token_ids)]),
            finish_reason=finish.reason if finish else None,
            stop_token_id=finish.stop_token_id if finish else None,
            queue_seconds=queue_seconds,
        )

    def _note_interval(self, rows: RowTable, row: int, num_tokens: int, now: float) -> None:
        """Record how long a row's tokens took since its last ones."""
        last = float(rows.last_token_time[row])
        if last and num_tokens and len(self._inter_token_seconds) < _MAX_INTERVALS:
            self._inter_token_seconds.append((now - last) / num_tokens)
        rows.last_token_time[row] = now


def _append_all(request: Request, token_ids: list[int]) -> tuple[list[int], Finish | None]:
    """Give a request its tokens up to the one that ends it."""
    accepted: list[int] = []
    for token_id in token_ids:
        accepted.append(token_id)
        finish = request.append(token_id)
        if finish is not None:
            return accepted, finish
    return accepted, None
