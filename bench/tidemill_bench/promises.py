"""What the policies promise, put to the test: urgent requests under load, and a tenant beside a flood.

Experiments in the simulator, from options to plain figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tidemill_bench.engine_seam import EngineSetup
from tidemill_bench.figures import attained_ttft
from tidemill_bench.policies import CONTINUOUS, POLICIES, REQUESTS_PER_SLOT, STATIC_BATCH, PolicyOptions
from tidemill_bench.runs import Job, Load, RateSearch, rate_for_attainment, simulate
from tidemill_bench.shapes import SHAPES, SimRequest, draw_requests
from tidemill_bench.simulator import RequestTimes, SimulationOptions
from tidemill_bench.step_time import StepTime

_FIFO_ATTAINMENT = 0.6
_SHARE_OF_URGENT = 0.5
_PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class SloGain:
    """Shares of requests that keep their own SLO, at one rate."""

    rate: float
    attainment: dict[str, float]

    @property
    def gain_points(self) -> float:
        """Return what `slo` attains more than `fifo`, in percentage points."""
        return 100.0 * (self.attainment["slo"] - self.attainment["fifo"])


@dataclass(frozen=True, kw_only=True)
class MixedLoad(Load):
    """Half the requests must answer at once, the other half may take ten times as long."""

    def requests(self, step_time: StepTime) -> list[SimRequest]:
        """Draw the requests, each with its SLO."""
        rng = np.random.default_rng(self.seed + 1)
        is_urgent = rng.random(self.count) < _SHARE_OF_URGENT
        return [
            request
            if urgent
            else replace(request, slo_ttft_seconds=_PATIENCE * (request.slo_ttft_seconds or 0.0))
            for request, urgent in zip(super().requests(step_time), is_urgent, strict=True)
        ]


def slo_gain(options: PolicyOptions, capacity: float) -> SloGain:
    """Compare the policies where `fifo` attains about 60 %: half the requests urgent, half patient."""
    count = REQUESTS_PER_SLOT * STATIC_BATCH * (1 if options.is_quick else 4)
    load = MixedLoad(shape=SHAPES["medium"], count=count, seed=options.seed, slo=options.slo)
    search = RateSearch(
        setup=CONTINUOUS, step_time=options.step_time, load=load, highest_rate=capacity, tolerance=1.02
    )
    rate = rate_for_attainment(search, _FIFO_ATTAINMENT)
    attainment = {}
    for policy in POLICIES:
        job = options.job(CONTINUOUS.but(policy=policy), replace(load, rate=rate))
        attainment[policy] = float(attained_ttft(simulate(job)).mean())
    return SloGain(rate=rate, attainment=attainment)


@dataclass(frozen=True, kw_only=True)
class Flood:
    """A quiet tenant's P99 latencies in seconds: on its fair share, beside a flood, and without fairness."""

    fair_share: float
    beside_flood: float
    without_fairness: float | None

    @property
    def ratio(self) -> float:
        """Return the P99 beside the flood over what the fair share gives."""
        return self.beside_flood / self.fair_share


def flood(options: PolicyOptions, capacity: float) -> Flood:
    """Let one tenant send five times what the engine can do, another less than its half.

    The yardstick is the quiet tenant alone on its fair share: an engine of its own with half of the slots and
    half of the speed.
    """
    shape = SHAPES["medium"]
    count = REQUESTS_PER_SLOT * STATIC_BATCH
    quiet = _tenant("quiet", draw_requests(shape, count, rate=0.4 * capacity, seed=options.seed))
    span = quiet[-1].arrival_seconds
    noisy_count = int(5 * capacity * span)
    noisy = _tenant("noisy", draw_requests(shape, noisy_count, rate=5 * capacity, seed=options.seed + 7))
    merged = sorted([*quiet, *noisy], key=lambda request: request.arrival_seconds)
    half = CONTINUOUS.but(max_num_seqs=CONTINUOUS.max_num_seqs // 2)
    return Flood(
        fair_share=_p99_of_quiet(half, options.step_time.scaled(2.0), quiet),
        beside_flood=_p99_of_quiet(CONTINUOUS, options.step_time, merged),
        without_fairness=None
        if options.is_quick
        else _p99_of_quiet(CONTINUOUS, options.step_time, merged, is_fair=False),
    )


def _tenant(name: str, requests: list[SimRequest]) -> list[SimRequest]:
    return [replace(request, tenant=name) for request in requests]


def _p99_of_quiet(
    setup: EngineSetup, step_time: StepTime, requests: list[SimRequest], *, is_fair: bool = True
) -> float:
    """Return the quiet tenant's P99 latency; the run ends with the last of its requests."""
    is_quiet = np.array([request.tenant == "quiet" for request in requests])
    served = requests if is_fair else [replace(request, tenant="") for request in requests]

    def is_over(times: RequestTimes, _now: float) -> bool:
        return bool(times.is_finished[is_quiet].all())

    job = Job(setup=setup, step_time=step_time, requests=tuple(served))
    times = simulate(job, SimulationOptions(is_over=is_over)).times
    return float(np.percentile((times.last_token - times.arrival)[is_quiet], 99))
