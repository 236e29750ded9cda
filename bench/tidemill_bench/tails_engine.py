"""The race's closed loops on the real CPU runner, in this process, on a clock of its CPU time.

A step takes its CPU time on one core, divided by the cores of the machine that is imagined: other programs on
this one don't count, and neither do HTTP nor what several cores wait for one another.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tidemill_bench.engine_seam import EngineSetup, build_engine
from tidemill_bench.scheduler_cost import one_core
from tidemill_bench.simulator import Computed
from tidemill_bench.tails import NUM_REQUESTS, Tails, run_closed_loop
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.core.calibration import calibrate
from tidemill_engine.request import RequestLimits
from tidemill_engine.runner.load import load_runner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tidemill_engine.step import SchedulerOutput

MODEL = "builtin://smollm2-135m"
SETUP = EngineSetup(num_blocks=2500)


def tails_of_engine(workloads: Sequence[str] = tuple(NUM_REQUESTS), num_cores: int = 2) -> Iterator[Tails]:
    """Run workloads in turn, each on a core that has timed its first steps, and yield their figures."""
    with one_core():
        runner = load_runner(
            CoreConfig(
                model=ModelConfig(uri=MODEL, max_model_len=SETUP.max_model_len),
                cache=CacheConfig(num_blocks=SETUP.num_blocks, block_size=SETUP.block_size),
                scheduler=SchedulerConfig(),
            ),
            lambda _read, _total: None,
        )

        def clock() -> float:
            return time.process_time() / num_cores

        def compute(output: SchedulerOutput) -> Computed:
            began = clock()
            runner.launch(output)
            result = runner.sample(None)
            return Computed(seconds=clock() - began, result=result)

        for workload in workloads:
            engine = build_engine(SETUP)
            limits = RequestLimits(
                vocab_size=runner.info.vocab_size,
                max_model_len=SETUP.max_model_len,
                max_cached_tokens=SETUP.num_blocks * SETUP.block_size,
            )
            calibrate(SchedulerConfig(), runner, limits, engine.learning, clock)
            yield run_closed_loop(workload, engine, compute)
