"""Runs of the simulator as jobs: one engine, one load, one result; several at once on several cores.

Knows how to search for the highest rate that keeps the SLO. Deterministic whatever the number of workers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from tidemill_bench.engine_seam import EngineSetup, build_engine
from tidemill_bench.figures import Figures, attained_ttft, summarize
from tidemill_bench.shapes import LengthShape, SimRequest, draw_requests
from tidemill_bench.simulator import RequestTimes, Simulation, SimulationOptions, Simulator
from tidemill_bench.step_time import StepTime

REQUIRED_ATTAINMENT = 0.9
_LEAST_SHARE = 1 / 4096
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class TtftSlo:
    """The SLO of a request: a part that is the same for all, and a multiple of its prompt's time alone.

    450 ms is what MLPerf Inference 5.0 asks of an interactive model (Llama 2 70B), 2 s what it asks of it
    otherwise.
    """

    seconds: float = 0.45
    times_alone: float = 2.0

    def of(self, request: SimRequest, step_time: StepTime) -> float:
        """Return the seconds within which the request's first token must come."""
        alone = step_time.model.predict_prefill(request.num_prompt_tokens, 512)
        return self.seconds + self.times_alone * alone

    def __str__(self) -> str:
        return f"TTFT <= {self.seconds:g} s + {self.times_alone:g} x the prompt's own time alone"


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests to draw: a shape, how many, and how they arrive (None: all at once)."""

    shape: LengthShape
    count: int
    rate: float | None = None
    seed: int = 1
    slo: TtftSlo = field(default_factory=TtftSlo)

    def requests(self, step_time: StepTime) -> list[SimRequest]:
        """Draw the requests, each with its SLO."""
        drawn = draw_requests(self.shape, self.count, rate=self.rate, seed=self.seed)
        return [replace(r, slo_ttft_seconds=self.slo.of(r, step_time)) for r in drawn]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: which engine, which requests, which machine."""

    setup: EngineSetup
    step_time: StepTime
    requests: tuple[SimRequest, ...]
    is_padding_charged: bool = True


def run_jobs(jobs: Sequence[Job], workers: int | None = None) -> list[Figures]:
    """Run all jobs, in the order given, on as many cores as there are."""
    return _mapped(run_job, jobs, workers)


def run_job(job: Job) -> Figures:
    """Run one job."""
    return summarize(simulate(job), None, job.step_time)


def simulate(job: Job, options: SimulationOptions | None = None) -> Simulation:
    """Run one job and return everything that happened."""
    options = replace(options or SimulationOptions(), is_padding_charged=job.is_padding_charged)
    return Simulator(build_engine(job.setup), job.step_time, job.requests, options).run()


@dataclass(frozen=True, kw_only=True)
class RateSearch:
    """Find the highest rate at which a share of the requests keeps the SLO."""

    setup: EngineSetup
    step_time: StepTime
    load: Load
    highest_rate: float
    required: float = REQUIRED_ATTAINMENT
    tolerance: float = 1.05

    def keeps_slo(self, rate: float) -> bool:
        """Say whether the required share of requests keeps the SLO at a rate."""
        return self.attainment(rate, may_stop_early=True) >= self.required

    def attainment(self, rate: float, *, may_stop_early: bool = False) -> float:
        """Return the share that keeps the SLO at a rate; early: as soon as it is clear whether enough do."""
        requests = replace(self.load, rate=rate).requests(self.step_time)
        slos = np.array([r.slo_ttft_seconds for r in requests])
        allowed = (1.0 - self.required) * len(requests)

        def is_settled(times: RequestTimes, now: float) -> bool:
            waited = np.where(np.isnan(times.first_token), now, times.first_token) - times.arrival
            num_kept = int((times.first_token - times.arrival <= slos).sum())
            return int((waited > slos).sum()) > allowed or num_kept >= self.required * len(requests)

        options = SimulationOptions(is_over=is_settled if may_stop_early else None)
        job = Job(setup=self.setup, step_time=self.step_time, requests=tuple(requests))
        simulation = simulate(job, options)
        return float(attained_ttft(simulation).mean())


def highest_rate(search: RateSearch) -> float:
    """Return the highest rate, requests a second, that keeps the SLO; 0 where even a trickle does not.

    Comes from above, by halves, since runs that fail are short, and then closes in.
    """
    low, high = search.highest_rate, 2 * search.highest_rate
    while not search.keeps_slo(low):
        low, high = low / 2, low
        if low < search.highest_rate * _LEAST_SHARE:
            return 0.0
    while high / low > search.tolerance:
        middle = math.sqrt(low * high)
        if search.keeps_slo(middle):
            low = middle
        else:
            high = middle
    return low


def highest_rates(searches: Sequence[RateSearch], workers: int | None = None) -> list[float]:
    """Search for all, in the order given, on as many cores as there are."""
    return _mapped(highest_rate, searches, workers)


def rate_for_attainment(search: RateSearch, wanted: float) -> float:
    """Return about the rate at which that share keeps the SLO, between half and twice `highest_rate`."""
    low, high = search.highest_rate / 2, search.highest_rate * 2
    while high / low > search.tolerance:
        middle = math.sqrt(low * high)
        if search.attainment(middle) >= wanted:
            low = middle
        else:
            high = middle
    return low


def _mapped(function: Callable[[Item], Result], items: Sequence[Item], workers: int | None) -> list[Result]:
    """Call the function for every item, in processes where that is worth it."""
    count = min(workers or len(os.sched_getaffinity(0)), len(items))
    if count <= 1:
        return [function(item) for item in items]
    with ProcessPoolExecutor(max_workers=count) as pool:
        return list(pool.map(function, items))
