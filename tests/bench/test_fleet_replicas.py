"""The quick replica against the engine's own scheduler, and the things that both must conserve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tidemill_bench.fleet.fleet import EngineKind, Fleet, FleetRun
from tidemill_bench.fleet.loads import CHAT, LONG_OUTPUT, PREFILL_HEAVY, Lengths, Load, draw
from tidemill_bench.fleet.settings import FleetSettings, Machine
from tidemill_operator.autoscaling.model import FleetLoad


class Constant:
    def decide(self, load: FleetLoad) -> int | None:
        return None


def load_of(lengths: Lengths, rate: float, seconds: float = 150.0) -> Load:
    return replace(draw("some", lambda _: rate, lengths, seconds, 7), warmup_seconds=0.0)


def run(load: Load, engine: EngineKind, settings: FleetSettings | None = None) -> FleetRun:
    return Fleet(load, Constant(), settings or FleetSettings(), engine).run()


def latencies(result: FleetRun) -> tuple[np.ndarray, np.ndarray]:
    first = np.array([r.first_token - r.arrival for r in result.requests])
    whole = np.array([r.last_token - r.arrival for r in result.requests])
    return first, whole


@pytest.mark.parametrize(
    ("lengths", "rate"), [(CHAT, 0.6), (PREFILL_HEAVY, 0.45), (LONG_OUTPUT, 0.5)], ids=["chat", "long", "out"]
)
@pytest.mark.slow
def test_the_quick_replica_times_requests_as_the_real_scheduler_does(lengths: Lengths, rate: float) -> None:
    quick, real = (latencies(run(load_of(lengths, rate), kind)) for kind in ("quick", "scheduler"))
    for mine, theirs in zip(quick, real, strict=True):
        for percent in (50, 90):
            wanted = float(np.percentile(theirs, percent))
            assert float(np.percentile(mine, percent)) == pytest.approx(wanted, rel=0.15, abs=0.15)


def test_every_request_gets_all_its_tokens_even_where_memory_runs_out() -> None:
    settings = FleetSettings(machine=Machine(num_blocks=300))
    result = run(load_of(Lengths(prompt_median=300, output_median=300), 0.8), "quick", settings)
    assert result.num_failed == 0
    assert all(r.num_generated == r.num_output for r in result.requests)
    assert all(r.arrival < r.first_token <= r.last_token for r in result.requests)


def test_the_same_load_gives_the_same_run_to_the_last_digit() -> None:
    first, second = (run(load_of(CHAT, 0.7), "quick") for _ in range(2))
    assert [r.last_token for r in first.requests] == [r.last_token for r in second.requests]
    assert first.gpu_hours == second.gpu_hours
