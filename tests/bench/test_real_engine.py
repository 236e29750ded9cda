"""The race on the real engine, with a runner that takes no time in the real one's place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_builders import make_sim_runner
from tidemill_bench.engine_seam import EngineSetup
from tidemill_bench.real_engine import ENGINES, RaceOptions, run_engine
from tidemill_bench.shapes import LengthShape, draw_requests
from tidemill_bench.smollm2 import VOCAB_SIZE
from tidemill_bench.step_time import load_step_time
from tidemill_engine.model_uri import SimModel
from tidemill_engine.runner.sim import SimRunner

LENGTHS = LengthShape(prompt_tokens=(1, 60), output_tokens=(1, 20))


@pytest.mark.parametrize("setup", ENGINES, ids=lambda setup: setup.name)
def test_every_engine_serves_all_requests_to_exactly_their_lengths(setup: EngineSetup) -> None:
    info = replace(make_sim_runner().info, vocab_size=VOCAB_SIZE, num_blocks=2048, block_size=32)
    info = replace(info, max_model_len=setup.max_model_len)
    runner = SimRunner(SimModel(name="t", step_ms=0), info, num_rows=256, sleep=lambda _seconds: None)
    requests = draw_requests(LENGTHS, 40, rate=None, seed=1)
    run = run_engine("some", setup, requests, runner)
    assert (run.num_requests, run.num_tokens) == (40, sum(r.num_output_tokens for r in requests))
    assert run.seconds > 0.0
    assert setup.name in run.as_line()


def test_only_the_dynamic_scheduler_among_ours_gets_fewer_requests() -> None:
    options = RaceOptions(step_time=load_step_time(), num_requests=256, num_outside=64)
    assert {setup.name: options.count_for(setup) for setup in ENGINES} == {
        "continuous fifo, 256 slots": 256,
        "continuous fifo": 256,
        "dynamic": 64,
        "static": 256,
    }
