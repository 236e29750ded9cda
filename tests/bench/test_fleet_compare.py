"""Both kinds of replicas in whole fleets lead to about the same."""

from __future__ import annotations

import pytest

from tidemill_bench.fleet import compare as comparing
from tidemill_bench.fleet.compare import as_json, as_table, compare
from tidemill_bench.fleet.settings import FleetSettings
from tidemill_bench.fleet.sweep import Options


def test_quick_replicas_and_the_scheduler_attain_about_the_same_for_the_same_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparing, "SECONDS", 480.0)
    options = Options(settings=FleetSettings(), loads=("long-prompts",), policies=("llm-d",))
    pairs = compare(options)
    assert [(p.quick.policy, p.scheduler.policy) for p in pairs] == [("tidemill",) * 2, ("llm-d",) * 2]
    assert all(abs(p.attainment_difference) < 0.15 for p in pairs)
    assert all(abs(p.hours_ratio - 1) < 0.2 for p in pairs)
    assert "long-prompts" in as_table(pairs)
    assert set(as_json(pairs)) == {"compared", "mean_attainment_difference", "mean_gpu_hours_difference"}
