"""What a step of the scheduler costs: `schedule` + `update` while every request decodes.

Times the engine's own scheduler in this process, on one core, in CPU time of this thread (what other
processes take is not ours) and in wall time. Block boundaries are included: rows cross them spread out
("mixed": about one in `block_size` rows each step) or all in the same step ("aligned").
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidemill_bench.engine_seam import EngineSetup, build_engine, to_message
from tidemill_bench.shapes import SimRequest
from tidemill_bench.simulator import make_result

if TYPE_CHECKING:
    from tidemill_engine.scheduler.base import Scheduler

FloatArray = npt.NDArray[np.float64]
SIZES = (256, 1024, 4096)
_PROMPT_TOKENS = 64
_WARM_UP_STEPS = 96


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """What to measure: how many running requests, how many steps, at which block size."""

    sizes: tuple[int, ...] = SIZES
    num_steps: int = 640
    block_size: int = 32


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Milliseconds of schedule + update over one run of steps, CPU time where not said otherwise."""

    median: float
    p99: float
    most: float
    wall_median: float
    wall_p99: float
    schedule_median: float
    update_median: float
    num_collections: int
    """Garbage collections during the timed steps; their time is in the figures, as it is in production."""


@dataclass(frozen=True, kw_only=True)
class SizeCost:
    """The cost at one number of running requests, boundaries spread out and aligned."""

    num_running: int
    mixed: Cost
    aligned: Cost

    def as_json(self) -> dict[str, float]:
        """Return the figures: the median of ordinary steps, the 99th percentile where boundaries align."""
        return {
            "median": round(self.mixed.median, 4),
            "p99": round(self.aligned.p99, 4),
            "aligned_median": round(self.aligned.median, 4),
            "mixed_p99": round(self.mixed.p99, 4),
            "wall_median": round(self.mixed.wall_median, 4),
            "wall_p99": round(self.aligned.wall_p99, 4),
        }


def measure_sizes(options: CostOptions) -> list[SizeCost]:
    """Measure every size."""
    with one_core():
        return [
            SizeCost(
                num_running=size,
                mixed=measure(size, options, is_aligned=False),
                aligned=measure(size, options, is_aligned=True),
            )
            for size in options.sizes
        ]


def measure(num_running: int, options: CostOptions, *, is_aligned: bool) -> Cost:
    """Fill a scheduler with decoding requests, warm up, and time steps one by one."""
    total_steps = _WARM_UP_STEPS + options.num_steps
    tokens = _PROMPT_TOKENS + options.block_size + total_steps + 8
    blocks = num_running * -(-tokens // options.block_size)
    setup = EngineSetup(
        max_num_seqs=num_running,
        max_num_batched_tokens=num_running * (_PROMPT_TOKENS + options.block_size),
        num_blocks=int(blocks / 0.85) + 1,
        block_size=options.block_size,
        max_model_len=tokens + 1,
    )
    scheduler = build_engine(setup).scheduler
    for index in range(num_running):
        shift = 0 if is_aligned else index % options.block_size
        request = SimRequest(
            arrival_seconds=0.0,
            num_prompt_tokens=_PROMPT_TOKENS + shift,
            num_output_tokens=tokens - _PROMPT_TOKENS - shift,
        )
        refused = scheduler.add(to_message(request, index), index)
        if refused is not None:
            raise RuntimeError(f"the scheduler refused a request: {refused.error}")
    now, is_decoding = 0.0, False
    while not is_decoding:
        now += 0.01
        output = scheduler.schedule(now)
        if output is None:
            raise RuntimeError("the scheduler schedules nothing")
        is_decoding = len(output.rows) == output.num_tokens == num_running
        scheduler.update(make_result(output), now)
    return _time_steps(scheduler, num_running, options.num_steps, now)


def _time_steps(scheduler: Scheduler, num_running: int, num_steps: int, now: float) -> Cost:
    """Time steps after a warm-up; making the result stands for the device and is not counted."""
    wall, cpu = time.perf_counter_ns, time.thread_time_ns
    stamps = np.zeros((num_steps, 8))
    gc.collect()
    num_collections = 0
    for step in range(-_WARM_UP_STEPS, num_steps):
        now += 0.01
        if step == 0:
            num_collections = _num_collections()
        began = wall(), cpu()
        output = scheduler.schedule(now)
        chosen = cpu(), wall()
        if output is None or len(output.rows) != num_running:
            raise RuntimeError("not every request decodes in a step that is being timed")
        result = make_result(output)
        handed = wall(), cpu()
        scheduler.update(result, now)
        ended = cpu(), wall()
        if step >= 0:
            stamps[step] = (*began, *chosen, *handed, *ended)
    return _cost(stamps / 1e6, _num_collections() - num_collections)


def _cost(stamps: FloatArray, num_collections: int) -> Cost:
    """Reduce the stamps `[num_steps, 8]`: wall, CPU, CPU, wall around schedule and then around update."""
    schedule, update = stamps[:, 2] - stamps[:, 1], stamps[:, 6] - stamps[:, 5]
    wall = stamps[:, 3] - stamps[:, 0] + stamps[:, 7] - stamps[:, 4]
    both = schedule + update
    return Cost(
        median=float(np.median(both)),
        p99=float(np.percentile(both, 99)),
        most=float(both.max()),
        wall_median=float(np.median(wall)),
        wall_p99=float(np.percentile(wall, 99)),
        schedule_median=float(np.median(schedule)),
        update_median=float(np.median(update)),
        num_collections=num_collections,
    )


def as_table(costs: list[SizeCost], peer: dict[str, dict[str, float]] | None) -> str:
    """Lay the costs out for a terminal, in milliseconds."""
    lines = [
        f"{'running':>8} {'boundaries':>10} {'median':>8} {'p99':>8} {'max':>8} "
        f"{'schedule':>9} {'update':>8} {'wall':>8} {'wall p99':>9} {'gc':>4}"
    ]
    for cost in costs:
        for name, part in (("mixed", cost.mixed), ("aligned", cost.aligned)):
            lines.append(
                f"{cost.num_running:>8} {name:>10} {part.median:8.3f} {part.p99:8.3f} {part.most:8.3f} "
                f"{part.schedule_median:9.3f} {part.update_median:8.3f} "
                f"{part.wall_median:8.3f} {part.wall_p99:9.3f} {part.num_collections:4d}"
            )
        theirs = (peer or {}).get(str(cost.num_running))
        if theirs:
            lines.append(
                f"{cost.num_running:>8} {'vLLM':>10} {theirs['median']:8.3f} {theirs['p99']:8.3f}"
                f"   {theirs['median'] / cost.mixed.median:.0f} times ours"
            )
    return "\n".join(lines)


@contextmanager
def one_core() -> Iterator[None]:
    """Stay on one core while inside."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _num_collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())
