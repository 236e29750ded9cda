"""Schedulers and policies against one another in the simulator: what is run, and what it is compared by.

Every experiment is a function from options to plain figures. Nothing here knows tables or plots.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tidemill_bench.engine_seam import EngineSetup
from tidemill_bench.figures import Figures
from tidemill_bench.runs import (
    Job,
    Load,
    RateSearch,
    TtftSlo,
    highest_rates,
    run_jobs,
)
from tidemill_bench.shapes import SHAPES, LengthShape, SimRequest
from tidemill_bench.step_time import StepTime
from tidemill_bench.traces import TRACES, load_trace

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
STATIC_BATCH = 32
REQUESTS_PER_SLOT = 8
STATIC = EngineSetup(scheduler="static", max_num_seqs=STATIC_BATCH)
DYNAMIC = EngineSetup(scheduler="dynamic", max_num_seqs=STATIC_BATCH)
CONTINUOUS = EngineSetup(max_num_seqs=STATIC_BATCH)
WIDE = EngineSetup(max_num_seqs=256, label=", 256 slots")
POLICIES = ("fifo", "sjf", "priority", "slo")
EXPECTED_THROUGHPUT = {"alike": 1.05, "medium": 1.5, "extreme": 3.5}
"""What continuous batching should reach at least over static, in output tokens a second."""
_MAX_TRACE_PROMPT = 16_000
_QUICK_TRACE_REQUESTS = 60
_TRACE_LOAD = 0.7
LOOSE_SLO = TtftSlo(seconds=2.0)
"""For readers who don't mind to wait: most of a static batch of short requests fits into it."""


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
    """Return the engines that are compared: 32 slots, or as many as go into the same memory ("wide")."""
    if options.is_quick:
        return [STATIC, CONTINUOUS, WIDE]
    return [STATIC, DYNAMIC, *(CONTINUOUS.but(policy=policy) for policy in POLICIES), WIDE]


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


def losses(options: PolicyOptions, rows: list[Row]) -> dict[str, Losses]:
    """Take the static scheduler's losses away one after another; `rows` are those of `saturated`.

    Padding: the same steps, but tokens for nobody take no time. Barrier: continuous, still 32 slots: a slot
    is taken again as soon as it is left. Reservation: as many slots as the same memory holds when it is taken
    block by block.
    """
    seconds = {(row.load, row.engine): row.figures.makespan_seconds for row in rows}
    jobs = [
        replace(options.job(STATIC, options.load(shape)), is_padding_charged=False)
        for shape in SHAPES.values()
    ]
    return {
        name: Losses(
            static=seconds[name, STATIC.name],
            without_padding=bare.makespan_seconds,
            without_barrier=seconds[name, CONTINUOUS.name],
            without_reservation=seconds[name, WIDE.name],
        )
        for name, bare in zip(SHAPES, run_jobs(jobs, options.workers), strict=True)
    }


def goodput(options: PolicyOptions, capacity: dict[str, float]) -> dict[str, dict[str, float]]:
    """Find for each shape and engine the highest rate at which 90 % of the requests keep the SLO."""
    engines = [STATIC, CONTINUOUS]
    if not options.is_quick:
        engines += [DYNAMIC, CONTINUOUS.but(policy="slo"), WIDE]
    longest_first = list(reversed(SHAPES.items()))
    searches = [
        RateSearch(
            setup=setup,
            step_time=options.step_time,
            load=options.load(shape, count=64 if options.is_quick and not shape.is_log_uniform else 128),
            highest_rate=capacity[name],
            tolerance=1.42 if options.is_quick else 1.1,
        )
        for name, shape in longest_first
        for setup in engines
    ]
    rates = iter(highest_rates(searches, options.workers))
    found = {name: {setup.name: next(rates) for setup in engines} for name, _ in longest_first}
    return {name: found[name] for name in SHAPES}


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


def traces(options: PolicyOptions) -> list[Row]:
    """Run whole hours of public traces without their longest prompts, slowed down to 70 % of capacity."""
    rows = []
    limit = _QUICK_TRACE_REQUESTS if options.is_quick else None
    for name in TRACES:
        requests = [r for r in load_trace(name, limit=limit) if r.num_prompt_tokens <= _MAX_TRACE_PROMPT]
        work = sum(_lone_seconds(request, options.step_time) for request in requests)
        stretch = max(1.0, work / _TRACE_LOAD / requests[-1].arrival_seconds)
        slowed = tuple(
            replace(
                r,
                arrival_seconds=r.arrival_seconds * stretch,
                slo_ttft_seconds=options.slo.of(r, options.step_time),
            )
            for r in requests
        )
        engines = _trace_engines(name, is_quick=options.is_quick)
        jobs = [Job(setup=engine, step_time=options.step_time, requests=slowed) for engine in engines]
        names = [(f"{name} x{stretch:.1f}", engine) for engine in engines]
        rows += _rows(names, run_jobs(jobs, options.workers))
    return rows


def _trace_engines(name: str, *, is_quick: bool) -> list[EngineSetup]:
    """Return who runs a trace: everyone the conversations of Azure, all policies its code.

    Mooncake's conversations, 12 million prompt tokens for each thousand requests, run under two policies.
    """
    memory = {"max_model_len": 131_072, "num_blocks": 8192}
    policies = ("fifo",) if is_quick else ("fifo", "slo") if name.startswith("mooncake") else POLICIES
    engines = [CONTINUOUS.but(policy=policy, max_num_seqs=128, **memory) for policy in policies]
    if name == "azure_2023_conv" and not is_quick:
        engines = [STATIC.but(**memory), DYNAMIC.but(**memory), *engines]
    return engines


def _rows(names: list[tuple[str, EngineSetup]], figures: list[Figures]) -> list[Row]:
    return [
        Row(load=load, engine=setup.name, figures=found)
        for (load, setup), found in zip(names, figures, strict=True)
    ]


def _lone_seconds(request: SimRequest, step_time: StepTime) -> float:
    """Return about what a request adds to an engine's work: its prompt, and its tokens in batches of 16."""
    first, token, context, _, logits = step_time.coefficients
    length = request.num_prompt_tokens + request.num_output_tokens / 2
    decode = first / 16 + token + logits + context * length
    return (
        step_time.model.predict_prefill(request.num_prompt_tokens, 512) + request.num_output_tokens * decode
    )
