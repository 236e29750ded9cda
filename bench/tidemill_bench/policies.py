"""Schedulers and policies against one another in the simulator: what is run, and what it is compared by.

Every experiment is a function from options to plain figures. Nothing here knows tables or plots.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tidemill_bench.engine_seam import EngineSetup
from tidemill_bench.figures import Figures, attained_ttft
from tidemill_bench.requests import SHAPES, LengthShape, SimRequest, draw_requests
from tidemill_bench.runs import (
    Job,
    Load,
    RateSearch,
    TtftSlo,
    highest_rates,
    rate_for_attainment,
    run_jobs,
    simulate,
)
from tidemill_bench.step_time import StepTime
from tidemill_bench.traces import TRACES, load_trace

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
STATIC_BATCH = 32
REQUESTS_PER_SLOT = 8
STATIC = EngineSetup(scheduler="static", max_num_seqs=STATIC_BATCH)
DYNAMIC = EngineSetup(scheduler="dynamic", max_num_seqs=STATIC_BATCH)
CONTINUOUS = EngineSetup(max_num_seqs=STATIC_BATCH)
WIDE = EngineSetup(max_num_seqs=256)
POLICIES = ("fifo", "sjf", "priority", "slo")
_FIFO_ATTAINMENT = 0.6
_MAX_TRACE_PROMPT = 16_000
_TRACE_LOAD = 0.7
_SHARE_OF_URGENT = 0.5


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """How much to run, on what machine, under which SLO."""

    step_time: StepTime
    is_quick: bool = False
    slo: TtftSlo = field(default_factory=TtftSlo)
    seed: int = 1
    workers: int | None = None

    def load(self, shape: LengthShape, rate: float | None = None, count: int | None = None) -> Load:
        """Return a load of a shape, by default eight requests for each slot of a static batch."""
        return Load(
            shape=shape,
            count=count or REQUESTS_PER_SLOT * STATIC_BATCH,
            rate=rate,
            seed=self.seed,
            slo=self.slo,
        )

    def job(self, setup: EngineSetup, load: Load) -> Job:
        """Return the run of a load on an engine."""
        requests = tuple(load.requests(self.step_time))
        return Job(setup=setup, step_time=self.step_time, requests=requests)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: a load, an engine, its figures."""

    load: str
    engine: str
    figures: Figures


def setups(options: PolicyOptions) -> list[EngineSetup]:
    """Return the engines that are compared, all with 32 slots and the same memory."""
    policies = POLICIES[:1] if options.is_quick else POLICIES
    return [STATIC, DYNAMIC, *(CONTINUOUS.but(policy=policy) for policy in policies)]


def saturated(options: PolicyOptions) -> list[Row]:
    """Run every shape, all requests there at once, on every engine."""
    names = [(shape, setup) for shape in SHAPES for setup in setups(options)]
    jobs = [options.job(setup, options.load(SHAPES[shape])) for shape, setup in names]
    return _rows(names, run_jobs(jobs, options.workers))


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Seconds of a shape's work on four engines that differ in one thing each; see `losses`."""

    static: float
    without_padding: float
    without_barrier: float
    without_reservation: float

    def shares(self) -> dict[str, float]:
        """Return what padding, the barrier and the reservation cost, as shares of the static run's time."""
        return {
            "padding": (self.static - self.without_padding) / self.static,
            "barrier": (self.without_padding - self.without_barrier) / self.static,
            "reservation": (self.without_barrier - self.without_reservation) / self.static,
        }


def losses(options: PolicyOptions) -> dict[str, Losses]:
    """Take the static scheduler's losses away one after another.

    Padding: the same steps, but tokens for nobody take no time. Barrier: continuous, still 32 slots: a slot
    is taken again as soon as it is left. Reservation: as many slots as the same memory holds when it is taken
    block by block; with 8 requests for each of them.
    """
    found = {}
    count = REQUESTS_PER_SLOT * (STATIC_BATCH if options.is_quick else WIDE.max_num_seqs)
    for name, shape in SHAPES.items():
        load = options.load(shape, count=count)
        full = options.job(STATIC, load)
        jobs = [full, replace(full, is_padding_charged=False)]
        jobs += [options.job(setup, load) for setup in (CONTINUOUS, WIDE)]
        seconds = [figures.makespan_seconds for figures in run_jobs(jobs, options.workers)]
        found[name] = Losses(
            static=seconds[0],
            without_padding=seconds[1],
            without_barrier=seconds[2],
            without_reservation=seconds[3],
        )
    return found


def goodput(options: PolicyOptions, capacity: dict[str, float]) -> dict[str, dict[str, float]]:
    """Find for each shape and engine the highest rate at which 90 % of the requests keep the SLO."""
    engines = (STATIC, CONTINUOUS) if options.is_quick else setups(options)
    searches = [
        RateSearch(
            setup=setup,
            step_time=options.step_time,
            load=options.load(SHAPES[shape], count=128 if options.is_quick else None),
            highest_rate=capacity[shape],
            tolerance=1.2 if options.is_quick else 1.05,
        )
        for shape in SHAPES
        for setup in engines
    ]
    rates = iter(highest_rates(searches, options.workers))
    return {shape: {setup.name: next(rates) for setup in engines} for shape in SHAPES}


def sweep(options: PolicyOptions, shape: str, capacity: float) -> list[Row]:
    """Run one shape at growing rates of arrival on every engine."""
    shares = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2)
    names = [(f"{share * capacity:.3f} req/s", setup) for share in shares for setup in setups(options)]
    jobs = [
        options.job(setup, options.load(SHAPES[shape], rate=share * capacity))
        for share in shares
        for setup in setups(options)
    ]
    return _rows(names, run_jobs(jobs, options.workers))


def sparse(options: PolicyOptions) -> list[Row]:
    """Run requests that hardly ever meet: one arrives long after the last has ended."""
    load = options.load(SHAPES["medium"], count=32)
    requests = tuple(
        replace(request, arrival_seconds=index * 120.0)
        for index, request in enumerate(load.requests(options.step_time))
    )
    engines = (STATIC, CONTINUOUS)
    jobs = [Job(setup=setup, step_time=options.step_time, requests=requests) for setup in engines]
    return _rows([("sparse", setup) for setup in engines], run_jobs(jobs, options.workers))


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
            request if urgent else replace(request, slo_ttft_seconds=10.0 * (request.slo_ttft_seconds or 0.0))
            for request, urgent in zip(super().requests(step_time), is_urgent, strict=True)
        ]


def slo_gain(options: PolicyOptions, capacity: float) -> SloGain:
    """Compare the policies where `fifo` attains about 60 %: half the requests urgent, half patient."""
    load = MixedLoad(
        shape=SHAPES["medium"], count=2 * REQUESTS_PER_SLOT * STATIC_BATCH, seed=options.seed, slo=options.slo
    )
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
    without_fairness: float

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
    quiet = _tenant("quiet", draw_requests(shape, count // 2, rate=0.4 * capacity, seed=options.seed))
    span = quiet[-1].arrival_seconds
    noisy_count = int(5 * capacity * span)
    noisy = _tenant("noisy", draw_requests(shape, noisy_count, rate=5 * capacity, seed=options.seed + 7))
    merged = sorted([*quiet, *noisy], key=lambda request: request.arrival_seconds)
    anonymous = [replace(request, tenant="") for request in merged]
    half = CONTINUOUS.but(max_num_seqs=CONTINUOUS.max_num_seqs // 2)
    alone = simulate(Job(setup=half, step_time=options.step_time.scaled(2.0), requests=tuple(quiet)))
    beside = simulate(Job(setup=CONTINUOUS, step_time=options.step_time, requests=tuple(merged)))
    unfair = simulate(Job(setup=CONTINUOUS, step_time=options.step_time, requests=tuple(anonymous)))
    is_quiet = np.array([request.tenant == "quiet" for request in merged])
    return Flood(
        fair_share=_p99(alone.times.last_token, alone.times.arrival, np.ones(len(quiet), dtype=np.bool_)),
        beside_flood=_p99(beside.times.last_token, beside.times.arrival, is_quiet),
        without_fairness=_p99(unfair.times.last_token, unfair.times.arrival, is_quiet),
    )


def traces(options: PolicyOptions) -> list[Row]:
    """Run the public traces, slowed down to about 70 % of what the engine can do."""
    rows = []
    limit = 300 if options.is_quick else None
    for name in TRACES:
        setup = CONTINUOUS.but(max_num_seqs=128, max_model_len=131_072, num_blocks=8192)
        requests = [r for r in load_trace(name, limit=limit) if r.num_prompt_tokens <= _MAX_TRACE_PROMPT]
        work = sum(_lone_seconds(request, options.step_time) for request in requests)
        stretch = max(1.0, work / _TRACE_LOAD / requests[-1].arrival_seconds)
        slowed = tuple(replace(r, arrival_seconds=r.arrival_seconds * stretch) for r in requests)
        engines = [setup] if options.is_quick else [setup.but(policy=policy) for policy in POLICIES]
        jobs = [Job(setup=engine, step_time=options.step_time, requests=slowed) for engine in engines]
        names = [(f"{name} x{stretch:.1f}", engine) for engine in engines]
        rows += _rows(names, run_jobs(jobs, options.workers))
    return rows


def _rows(names: list[tuple[str, EngineSetup]], figures: list[Figures]) -> list[Row]:
    return [
        Row(load=load, engine=setup.name, figures=found)
        for (load, setup), found in zip(names, figures, strict=True)
    ]


def _tenant(name: str, requests: list[SimRequest]) -> list[SimRequest]:
    return [replace(request, tenant=name) for request in requests]


def _p99(ends: FloatArray, arrivals: FloatArray, chosen: BoolArray) -> float:
    return float(np.percentile((ends - arrivals)[chosen], 99))


def _lone_seconds(request: SimRequest, step_time: StepTime) -> float:
    """Return about what a request adds to an engine's work: its prompt, and its tokens in batches of 16."""
    first, token, context, _, logits = step_time.coefficients
    length = request.num_prompt_tokens + request.num_output_tokens / 2
    decode = first / 16 + token + logits + context * length
    return (
        step_time.model.predict_prefill(request.num_prompt_tokens, 512) + request.num_output_tokens * decode
    )
