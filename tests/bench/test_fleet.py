"""The fleet around the replicas: cold starts, drains, crashes, what is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill_bench.fleet.catalogue import held_out
from tidemill_bench.fleet.fleet import Fleet
from tidemill_bench.fleet.loads import CHAT, Load, draw
from tidemill_bench.fleet.ours import Tidemill, policy_for
from tidemill_bench.fleet.settings import FleetSettings
from tidemill_operator.autoscaling.model import FleetLoad

SETTINGS = FleetSettings()


class Scripted:
    """Asks for numbers at times."""

    def __init__(self, *targets: tuple[float, int]) -> None:
        self._targets = targets
        self.loads: list[FleetLoad] = []

    def decide(self, load: FleetLoad) -> int | None:
        self.loads.append(load)
        return next((n for at, n in reversed(self._targets) if load.at >= at), None)


def make_load(rate: float = 0.8, seconds: float = 300.0, **changes: object) -> Load:
    load = replace(draw("some", lambda _: rate, CHAT, seconds, 3), warmup_seconds=0.0, initial_replicas=2)
    return replace(load, **changes)  # type: ignore[arg-type]


def test_a_new_pod_serves_after_its_cold_start_and_costs_from_its_creation() -> None:
    policy = Scripted((50.0, 3))
    result = Fleet(make_load(), policy, SETTINGS).run()
    new = [next(r for r in load.replicas if r.uid == "pod-2") for load in policy.loads if load.at >= 55]
    ready = next(r.ready_since for r in new if r.ready_since is not None)
    assert 0.85 * 90 <= ready - new[0].created <= 1.15 * 90
    hours = (2 * 300 + (300 - new[0].created)) / 3600 * SETTINGS.machine.num_gpus
    assert result.gpu_hours == pytest.approx(hours, rel=0.01)


def test_scaling_down_drains_and_loses_no_request() -> None:
    result = Fleet(make_load(1.4), Scripted((100.0, 1)), SETTINGS).run()
    assert result.num_failed == 0
    assert result.targets[-1][1] == 1


def test_returning_load_takes_draining_pods_back_before_new_ones_are_made() -> None:
    policy = Scripted((100.0, 1), (105.0, 2))
    Fleet(make_load(1.6), policy, SETTINGS).run()
    assert {r.uid for load in policy.loads for r in load.replicas} == {"pod-0", "pod-1"}


def test_a_crash_loses_only_started_requests_and_a_new_pod_takes_its_place() -> None:
    policy = Scripted()
    result = Fleet(make_load(1.2, crashes_seconds=(100.0,)), policy, SETTINGS).run()
    failed = [r for r in result.requests if r.is_failed]
    assert failed
    assert all(r.has_started and r.arrival <= 100.0 for r in failed)
    assert any(r.uid == "pod-2" for r in policy.loads[-1].replicas)


def test_gateways_hold_what_a_full_fleet_can_not_take_and_lose_nothing() -> None:
    policy = Scripted()
    result = Fleet(make_load(4.0, 120.0), policy, SETTINGS).run()
    held = [g.demand.held_requests for load in policy.loads for g in load.gateways if g.demand is not None]
    assert max(held) > 0
    assert result.num_failed == 0


def test_two_policies_meet_the_same_lost_scrapes() -> None:
    first, second = Scripted(), Scripted((250.0, 3))
    for policy in (first, second):
        Fleet(make_load(), policy, replace(SETTINGS, scrape_failure_share=0.3)).run()
    lost = [
        [[r.figures is None for r in load.replicas][:2] for load in p.loads[:40]] for p in (first, second)
    ]
    assert lost[0] == lost[1]
    assert any(any(row) for row in lost[0])


@pytest.mark.slow
def test_oscillation_ours_leaves_the_reported_constant_load_alone() -> None:
    load = next(load for load in held_out() if load.name == "constant")
    result = Fleet(load, Tidemill(policy_for(SETTINGS)), SETTINGS).run()
    assert result.num_scale_events <= 1
    assert result.attainment > 0.95


@pytest.mark.slow
def test_pending_pods_ignored_is_wrong_ours_answers_a_burst_without_a_cascade() -> None:
    load = replace(
        draw("step", lambda t: 1.0 if t < 400 else 3.5, CHAT, 1000.0, 6),
        initial_replicas=2,
        warmup_seconds=0.0,
    )
    settings = replace(SETTINGS, startup_seconds=120.0)
    result = Fleet(load, Tidemill(policy_for(settings)), settings).run()
    assert max(n for _, n in result.targets) <= 9
    assert result.targets[-1][1] >= 4


@pytest.mark.parametrize(
    ("rate", "seed"),
    [(3.3, 324), (1.2, 320), (1.379, 7028), (1.959, 7056), (3.89, 41014), (4.56, 42017)],
)
def test_a_constant_load_of_an_hour_changes_the_number_at_most_once(rate: float, seed: int) -> None:
    load = replace(draw("level", lambda _: rate, CHAT, 3900.0, seed), initial_replicas=round(rate / 0.7))
    result = Fleet(load, Tidemill(policy_for(SETTINGS)), SETTINGS).run()
    assert result.num_scale_events <= 1
    assert result.attainment > 0.9
