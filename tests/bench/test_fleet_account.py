"""Where GPU-hours go: the accounts add up, and foresight needs no more than who is surprised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill_bench.fleet import account as accounting
from tidemill_bench.fleet.account import NAMES, account, as_json, as_table
from tidemill_bench.fleet.foresight import needed, work_over_time
from tidemill_bench.fleet.loads import CHAT, draw, steps
from tidemill_bench.fleet.settings import FleetSettings

SETTINGS = FleetSettings()
LOAD = replace(draw("steps", steps((0, 0.8), (400, 2.0)), CHAT, 700.0, 5), initial_replicas=2)


def test_the_accounts_add_up_to_the_gpu_hours_and_foresight_needs_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounting, "SETTINGS", ((0.55, 60.0), (0.75, 60.0), (0.94, 60.0)))
    found = account(LOAD, SETTINGS)
    assert sum(found.hours.values()) == pytest.approx(found.gpu_hours, rel=0.03)
    assert found.hours["work"] > 0.3 * found.gpu_hours
    assert found.hours["starting"] > 0
    assert found.with_foresight < 1.02 * found.gpu_hours
    assert all(name in as_table([found]) for name in NAMES)
    assert as_json([found])["steps"]


def test_the_accounts_add_up_however_seldom_a_fleet_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "SETTINGS", ((0.75, 60.0),))
    found = account(LOAD, replace(SETTINGS, scrape_interval_seconds=10.0))
    assert sum(found.hours.values()) == pytest.approx(found.gpu_hours, rel=0.05)


def test_foresight_sees_the_work_that_arrives_and_counts_the_replicas_for_it() -> None:
    work = work_over_time(LOAD, SETTINGS, 60.0)
    calm, busy = float(work[20:70].mean()), float(work[90:130].mean())
    assert busy == pytest.approx(2.5 * calm, rel=0.3)
    assert needed([calm], 0.67) < needed([busy], 0.67)
