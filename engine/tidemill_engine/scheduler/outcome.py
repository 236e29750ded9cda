"""From a step's result to what each request is told, and the counters that follow.

Knows rows, their tokens and when they end. Does not free anything: the scheduler does. Most rows get one
token and nothing else: they stay columns; an object is made for first and last outputs, logprobs and errors.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.messages import RequestOutput
from tidemill_engine.scheduler.base import StepOutputs

if TYPE_CHECKING:
    from tidemill_engine.messages import FinishReason
    from tidemill_engine.scheduler.rows import RowTable
    from tidemill_engine.step import BoolArray, FloatArray, IntArray, LongArray, StepResult

logger = logging.getLogger(__name__)

_MAX_INTERVALS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What open rows took of a result `[n, k]`: which tokens, and why some rows end with their last one."""

    rows: IntArray
    token_ids: IntArray
    is_taken: BoolArray
    counts: IntArray
    is_stop: BoolArray
    is_full: BoolArray


class Outcomes:
    """Turns results into outputs and counts prompt and output tokens."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._intervals: list[FloatArray] = []
        self._num_intervals = 0

    def failures(self, result: StepResult, rows: RowTable) -> list[RequestOutput]:
        """Return the errors of rows that could not be computed."""
        outputs = []
        for failure in result.failures:
            if not rows.is_open[failure.row]:
                continue
            request = rows.request_at(failure.row)
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

    def tokens(self, result: StepResult, rows: RowTable, now: float) -> tuple[StepOutputs, Taken]:
        """Hand the step's tokens to their rows; those of requests that have ended are dropped."""
        taken = take_tokens(result, rows)
        counts = taken.counts
        self.generation_tokens += int(counts.sum())
        self._note_intervals(rows, taken.rows, counts, now)
        is_special = rows.is_special[taken.rows] | taken.is_stop | taken.is_full
        special = is_special.nonzero()[0].tolist()
        handles, token_ids = _columns(taken, rows, None if not special else ~is_special)
        columns = StepOutputs(
            handles=handles,
            token_ids=token_ids,
            special=[self._output(taken, rows, index, result) for index in special],
        )
        return columns, taken

    def take_inter_token_seconds(self) -> list[float]:
        """Return and forget the intervals between output tokens since the last call."""
        taken, self._intervals, self._num_intervals = self._intervals, [], 0
        intervals: list[float] = np.concatenate(taken).tolist() if taken else []
        return intervals

    def _output(self, taken: Taken, rows: RowTable, index: int, result: StepResult) -> RequestOutput:
        """Make one request's output; its first one carries the time it queued and what was cached."""
        row = int(taken.rows[index])
        request = rows.request_at(row)
        token_ids: list[int] = taken.token_ids[index][taken.is_taken[index]].tolist()
        is_first = int(rows.num_known_tokens[row]) - len(token_ids) == request.num_prompt_tokens
        queue_seconds = None
        if is_first:
            self.prompt_tokens += request.num_prompt_tokens
            if request.first_scheduled_time is not None:
                queue_seconds = max(0.0, request.first_scheduled_time - request.arrival_time)
        rows.is_special[row] = request.sampling.num_logprobs is not None
        is_stop = bool(taken.is_stop[index])
        reason: FinishReason | None = "stop" if is_stop else "length" if taken.is_full[index] else None
        return RequestOutput(
            request_id=request.request_id,
            token_ids=token_ids,
            logprobs=list(result.logprobs.get(row, ())[: len(token_ids)]),
            finish_reason=reason,
            stop_token_id=token_ids[-1] if is_stop else None,
            num_cached_tokens=request.num_cached_tokens if is_first else 0,
            queue_seconds=queue_seconds,
        )

    def _note_intervals(self, rows: RowTable, taken: IntArray, counts: IntArray, now: float) -> None:
        """Record how long rows' tokens took since their last ones."""
        if self._num_intervals < _MAX_INTERVALS:
            last = rows.last_token_time[taken]
            is_next = last > 0.0
            self._intervals.append(((now - last) / counts)[is_next])
            self._num_intervals += int(np.count_nonzero(is_next))
        rows.last_token_time[taken] = now


def take_tokens(result: StepResult, rows: RowTable) -> Taken:
    """Give open rows their accepted tokens, one column after another, up to those that end them."""
    is_open = rows.is_open[result.rows]
    if is_open.all():
        chosen, token_ids, num_accepted = result.rows, result.token_ids, result.num_accepted
    else:
        chosen, token_ids = result.rows[is_open], result.token_ids[is_open]
        num_accepted = result.num_accepted[is_open]
    if token_ids.shape[1] == 1 and int(num_accepted.sum()) == len(chosen):
        is_stop, is_full = rows.append_token(chosen, token_ids[:, 0])
        is_taken = np.ones(token_ids.shape, dtype=np.bool_)
        counts = np.ones_like(chosen)
    else:
        is_taken, is_stop, is_full = _take_columns(chosen, token_ids, num_accepted, rows)
        counts = is_taken.sum(axis=1, dtype=np.int32)
    return Taken(
        rows=chosen, token_ids=token_ids, is_taken=is_taken, counts=counts, is_stop=is_stop, is_full=is_full
    )


def _take_columns(
    chosen: IntArray, token_ids: IntArray, num_accepted: IntArray, rows: RowTable
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Give rows several tokens, one after another; return which were taken, and which ends were reached."""
    is_taken = np.zeros(token_ids.shape, dtype=np.bool_)
    is_stop = np.zeros(len(chosen), dtype=np.bool_)
    is_full = np.zeros(len(chosen), dtype=np.bool_)
    for column in range(token_ids.shape[1]):
        going = np.flatnonzero((num_accepted > column) & ~is_stop & ~is_full)
        if len(going) == 0:
            break
        is_taken[going, column] = True
        is_stop[going], is_full[going] = rows.append_token(chosen[going], token_ids[going, column])
    return is_taken, is_stop, is_full


def _columns(taken: Taken, rows: RowTable, is_plain: BoolArray | None) -> tuple[LongArray, IntArray]:
    """Return handles and tokens of the plain rows, of all where None, one entry for each token."""
    handles = rows.handles[taken.rows]
    if taken.token_ids.shape[1] == 1 and is_plain is None:
        return handles, taken.token_ids[:, 0]
    counts, is_taken = taken.counts, taken.is_taken
    if is_plain is not None:
        counts, is_taken = np.where(is_plain, counts, 0), is_taken & is_plain[:, None]
    return np.repeat(handles, counts), taken.token_ids[is_taken]
