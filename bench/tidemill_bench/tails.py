"""The race's closed loops in the simulator: what a rule of the scheduler does to first tokens and gaps.

Knows the race's workloads, a machine's step times and when clients send. Measures nothing: the figures are
the same on every machine, and serve to compare rules with one another, not to promise times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tidemill_bench.engine_seam import EngineSetup, SimEngine, build_engine
from tidemill_bench.load.workload import SHAPES, plan_requests
from tidemill_bench.race.contender import CONCURRENCY, QUICK_REQUESTS
from tidemill_bench.shapes import PREFIX_BLOCK_TOKENS, SimRequest
from tidemill_bench.simulator import ClosedLoop, SimulationOptions, Simulator
from tidemill_bench.smollm2 import VOCAB_SIZE
from tidemill_bench.step_time import StepTime
from tidemill_engine.scheduler.step_model import StepFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_bench.simulator import Computed
    from tidemill_engine.step import SchedulerOutput

    Compute = Callable[[SchedulerOutput], Computed]

NUM_REQUESTS = {name: QUICK_REQUESTS[name] for name in ("uniform", "medium", "extreme", "prefix")}
"""The workloads, with as many requests as `race --quick` sends."""
CLOSED_LOOP = ClosedLoop(concurrency=CONCURRENCY, turnaround_seconds=0.005, spacing_seconds=0.001)
SMALL_CPU = StepTime(
    coefficients=(0.004, 0.00055, 1.2e-6, 0.22e-6, 0.00013),
    provenance={"machine": "assumed: two cores with AVX-512 BF16, no AMX", "model": "SmolLM2-135M"},
)
"""4 ms a step, 0.55 ms a token, 1.2 us a token of decodes' context, 0.22 us a pair, 0.13 ms a logit row."""
_SEED = 1


@dataclass(frozen=True, kw_only=True)
class Tails:
    """One workload's figures in seconds; gaps are all those of all streams, as in the race."""

    workload: str
    ttft_mean: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    itl_max: float
    tokens_per_second: float


@dataclass(kw_only=True)
class _Gaps:
    """Collects the seconds between tokens of each stream, step by step."""

    owners: dict[int, int] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def note(self, _begin: float, end: float, output: SchedulerOutput) -> None:
        """Take in one step."""
        self.owners.update({new_row.row: new_row.seed for new_row in output.new_rows})
        ends = np.cumsum(output.num_scheduled_tokens)
        for row in output.rows[np.searchsorted(ends, output.logit_rows, side="right")].tolist():
            owner = self.owners[row]
            if owner in self.last:
                self.seconds.append(end - self.last[owner])
            self.last[owner] = end


def tails(workload: str, setup: EngineSetup | None = None) -> Tails:
    """Run one of the race's closed loops on an engine that has measured its steps before."""
    engine = build_engine(setup or EngineSetup())
    engine.learning.model.calibrate((features, SMALL_CPU.seconds(features)) for features in _calibration())
    return run_closed_loop(workload, engine)


def run_closed_loop(workload: str, engine: SimEngine, compute: Compute | None = None) -> Tails:
    """Run one of the race's closed loops on an engine; steps that nobody computes take assumed times."""
    gaps = _Gaps()
    options = SimulationOptions(on_step=gaps.note, closed_loop=CLOSED_LOOP, compute=compute)
    run = Simulator(engine, SMALL_CPU, _requests(workload), options).run()
    if run.times.errors or not run.times.is_finished.all():
        raise RuntimeError(f"{workload}: not every request was served: {run.times.errors}")
    ttft = run.times.first_token - run.times.arrival
    itl = np.array(gaps.seconds)
    return Tails(
        workload=workload,
        ttft_mean=float(ttft.mean()),
        ttft_p99=float(np.percentile(ttft, 99)),
        itl_p50=float(np.percentile(itl, 50)),
        itl_p99=float(np.percentile(itl, 99)),
        itl_max=float(itl.max()),
        tokens_per_second=float(run.times.num_tokens.sum()) / run.end_seconds,
    )


def as_table(rows: Sequence[Tails]) -> str:
    """Return the figures as a table: TTFT in seconds, gaps in milliseconds."""
    lines = [
        "workload  TTFT mean       p99, s |  ITL p50       p99   longest, ms |   tok/s",
        *(
            f"{row.workload:<9} {row.ttft_mean:>9.2f} {row.ttft_p99:>12.2f} | {1e3 * row.itl_p50:>8.0f} "
            f"{1e3 * row.itl_p99:>9.0f} {1e3 * row.itl_max:>13.0f} | {row.tokens_per_second:>7.0f}"
            for row in rows
        ),
    ]
    return "\n".join(lines)


def _requests(workload: str) -> list[SimRequest]:
    num_blocks = SHAPES[workload].shared_tokens // PREFIX_BLOCK_TOKENS
    return [
        SimRequest(
            arrival_seconds=planned.index * CLOSED_LOOP.spacing_seconds,
            num_prompt_tokens=len(planned.prompt_token_ids),
            num_output_tokens=planned.output_tokens,
            prefix_ids=tuple(range(num_blocks)),
        )
        for planned in plan_requests(workload, NUM_REQUESTS[workload], VOCAB_SIZE, _SEED)
    ]


def _calibration() -> Iterator[StepFeatures]:
    """Yield steps like those that a core measures before its first request."""
    for num_rows in (1, 4, 8, 16, 64):
        for context in (16, 128, 512):
            yield StepFeatures(num_rows, float(num_rows * context), 0.0, num_rows)
    for chunk in (8, 64, 120, 300, 500):
        yield StepFeatures(0, 0.0, 0.0, 0).with_chunk(chunk, 0)
