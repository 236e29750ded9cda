"""The engine's own scheduler against a model of step times, on a clock that only steps move.

No real time, no sleeping, no chance: the same requests and settings give the same result, to the last digit.
Knows arrivals, steps and tokens. Tokens are counted, not computed: each is a function of request and place.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidemill_bench.engine_seam import SimEngine, Told, to_message, told
from tidemill_bench.step_time import StepTime
from tidemill_engine.scheduler.step_model import features_of
from tidemill_engine.step import StepResult

if TYPE_CHECKING:
    from tidemill_bench.shapes import SimRequest
    from tidemill_engine.step import IntArray, SchedulerOutput

FloatArray = npt.NDArray[np.float64]
LongArray = npt.NDArray[np.int64]

_IDLE_TICK_SECONDS = 0.001
_MAX_IDLE_TICKS = 120_000
_STEPS_BETWEEN_CHECKS = 64


class SimulationStuckError(RuntimeError):
    """Requests wait, time passes, and the scheduler schedules nothing: a fault of the scheduler."""


@dataclass(kw_only=True)
class RequestTimes:
    """What became of each request; arrays `[num_requests]`, in seconds of the virtual clock, NaN = never."""

    arrival: FloatArray
    first_token: FloatArray
    last_token: FloatArray
    num_tokens: LongArray
    longest_gap: FloatArray
    num_cached_tokens: LongArray
    queue_seconds: FloatArray
    is_finished: npt.NDArray[np.bool_]
    errors: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def empty(requests: Sequence[SimRequest]) -> RequestTimes:
        """Return the books before anything has happened."""
        count = len(requests)
        return RequestTimes(
            arrival=np.array([r.arrival_seconds for r in requests], dtype=np.float64),
            first_token=np.full(count, np.nan),
            last_token=np.full(count, np.nan),
            num_tokens=np.zeros(count, dtype=np.int64),
            longest_gap=np.zeros(count),
            num_cached_tokens=np.zeros(count, dtype=np.int64),
            queue_seconds=np.full(count, np.nan),
            is_finished=np.zeros(count, dtype=np.bool_),
        )

    def note(self, index: int, what: Told, now: float) -> None:
        """Write down what one request was told at the end of a step."""
        if what.num_tokens:
            last = self.last_token[index]
            if math.isnan(last):
                self.first_token[index] = now
            else:
                self.longest_gap[index] = max(self.longest_gap[index], (now - last) / what.num_tokens)
            self.last_token[index] = now
            self.num_tokens[index] += what.num_tokens
        if what.queue_seconds is not None:
            self.queue_seconds[index] = what.queue_seconds
        if what.num_cached_tokens:
            self.num_cached_tokens[index] = what.num_cached_tokens
        if what.error is not None:
            self.errors[index] = what.error
        self.is_finished[index] |= what.is_last

    def note_one_each(self, indices: LongArray, now: float) -> None:
        """Write down one plain token for each of these requests."""
        last = self.last_token[indices]
        is_first = np.isnan(last)
        self.first_token[indices[is_first]] = now
        gaps = np.where(is_first, 0.0, now - last)
        self.longest_gap[indices] = np.maximum(self.longest_gap[indices], gaps)
        self.last_token[indices] = now
        self.num_tokens[indices] += 1


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """One line per step: when it ended, how many rows had real tokens, tokens, and tokens for nobody."""

    end_seconds: FloatArray
    num_rows: LongArray
    num_tokens: LongArray
    num_padding_tokens: LongArray
    seconds: FloatArray


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The result of one run. Index i is request i of the input."""

    requests: tuple[SimRequest, ...]
    times: RequestTimes
    steps: StepLog
    num_preemptions: int
    end_seconds: float


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A step's result, and the seconds that it took."""

    seconds: float
    result: StepResult


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """So many requests in flight: the next one arrives a client's time after another has ended."""

    concurrency: int
    turnaround_seconds: float = 0.0
    spacing_seconds: float = 0.0
    """Between any two of these arrivals, as one process sends and one reads them."""


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """How to run: whether padding costs time, an end for runs that would take too long, watchers of steps."""

    is_padding_charged: bool = True
    until_seconds: float = math.inf
    aborts: tuple[tuple[float, int], ...] = ()
    """(time, request index): the client leaves then."""
    on_step: Callable[[float, float, SchedulerOutput], None] | None = None
    is_over: Callable[[RequestTimes, float], bool] | None = None
    """Asked now and then whether the rest can be left out."""
    compute: Callable[[SchedulerOutput], Computed] | None = None
    """Computes the steps; without it they take what the model of step times says, and tokens mean nothing."""
    closed_loop: ClosedLoop | None = None
    """Where there is one, only the first requests arrive when they say."""


class Simulator:
    """One run: `Simulator(...).run()`."""

    def __init__(
        self,
        engine: SimEngine,
        step_time: StepTime,
        requests: Iterable[SimRequest],
        options: SimulationOptions | None = None,
    ) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._step_time = step_time
        self._requests = list(requests)
        self._options = options or SimulationOptions()
        self._times = RequestTimes.empty(self._requests)
        loop = self._options.closed_loop
        num_first = len(self._requests) if loop is None else loop.concurrency
        self._arrivals = [(r.arrival_seconds, i) for i, r in enumerate(self._requests[:num_first])]
        heapq.heapify(self._arrivals)
        self._num_sent = len(self._arrivals)
        self._last_sent = 0.0
        self._aborts = sorted(self._options.aborts)
        self._log: list[tuple[float, int, int, int, float]] = []
        self._now = 0.0

    def run(self) -> Simulation:
        """Run until every request has ended or the time is up."""
        idle_ticks = 0
        while self._now < self._options.until_seconds and not self._is_over():
            self._take_events()
            output = self._scheduler.schedule(self._now)
            if output is not None:
                idle_ticks = 0
                self._step(output)
            elif self._scheduler.has_work():
                idle_ticks += 1
                if idle_ticks > _MAX_IDLE_TICKS:
                    raise SimulationStuckError(f"at {self._now:.3f} s: {self._scheduler.stats()}")
                held_back = self._scheduler.wait_seconds(self._now)
                self._now = min(self._now + held_back + _IDLE_TICK_SECONDS, self._next_event())
            elif self._arrivals:
                self._now = self._next_event()
            else:
                break
        return self._result()

    def _is_over(self) -> bool:
        """Ask, every so many steps, whether the rest can be left out."""
        is_over = self._options.is_over
        return (
            is_over is not None
            and len(self._log) % _STEPS_BETWEEN_CHECKS == 0
            and is_over(self._times, self._now)
        )

    def _next_event(self) -> float:
        """Return the time of the next arrival or abort; infinity if there is none."""
        coming = [events[0][0] for events in (self._arrivals, self._aborts) if events]
        later = [when for when in coming if when > self._now]
        return min(later, default=math.inf)

    def _take_events(self) -> None:
        """Hand over the requests that have arrived and take out those whose clients have left."""
        while self._arrivals and self._arrivals[0][0] <= self._now:
            _, index = heapq.heappop(self._arrivals)
            refused = self._scheduler.add(to_message(self._requests[index], index), index)
            if refused is not None:
                self._times.errors[index] = refused.error or "refused"
                self._times.is_finished[index] = True
                self._send_another()
        while self._aborts and self._aborts[0][0] <= self._now:
            _, index = self._aborts.pop(0)
            if self._scheduler.abort(str(index)) is not None:
                self._times.is_finished[index] = True
                self._send_another()

    def _step(self, output: SchedulerOutput) -> None:
        """Let a step take its time and hand out its tokens."""
        computed = (self._options.compute or self._imagine)(output)
        seconds = computed.seconds
        self._now += seconds
        self._engine.observe(output, seconds)
        plain, exceptional = told(self._scheduler.update(computed.result, self._now))
        self._times.note_one_each(plain, self._now)
        for index, what in exceptional:
            self._times.note(index, what, self._now)
            if what.is_last:
                self._send_another()
        self._log.append((self._now, len(output.rows), output.num_tokens, output.num_padding_tokens, seconds))
        if self._options.on_step is not None:
            self._options.on_step(self._now - seconds, self._now, output)

    def _send_another(self) -> None:
        """Let the next request of a closed loop arrive, if there is one and one is left."""
        loop, index = self._options.closed_loop, self._num_sent
        if loop is None or index == len(self._requests):
            return
        when = max(self._now + loop.turnaround_seconds, self._last_sent + loop.spacing_seconds)
        self._num_sent, self._last_sent = index + 1, when
        self._requests[index] = replace(self._requests[index], arrival_seconds=when)
        self._times.arrival[index] = when
        heapq.heappush(self._arrivals, (when, index))

    def _imagine(self, output: SchedulerOutput) -> Computed:
        """Return what a step comes to without computing it."""
        features = features_of(output, with_padding=self._options.is_padding_charged)
        return Computed(seconds=self._step_time.seconds(features), result=make_result(output))

    def _result(self) -> Simulation:
        columns = np.array(self._log, dtype=np.float64).reshape(-1, 5).T
        return Simulation(
            requests=tuple(self._requests),
            times=self._times,
            steps=StepLog(
                end_seconds=columns[0],
                num_rows=columns[1].astype(np.int64),
                num_tokens=columns[2].astype(np.int64),
                num_padding_tokens=columns[3].astype(np.int64),
                seconds=columns[4],
            ),
            num_preemptions=self._scheduler.stats().num_preemptions,
            end_seconds=self._now,
        )


def make_result(output: SchedulerOutput) -> StepResult:
    """Give every row that asked for logits a token that depends on its place only."""
    ends = np.cumsum(output.num_scheduled_tokens)
    owners = np.searchsorted(ends, output.logit_rows, side="right")
    rows = output.rows[owners]
    tokens: IntArray = 300 + (output.start_pos[owners] + output.num_scheduled_tokens[owners]) % 1000
    return StepResult(
        step_id=output.step_id,
        rows=rows,
        token_ids=tokens.astype(np.int32).reshape(-1, 1),
        num_accepted=np.ones(len(rows), dtype=np.int32),
    )
