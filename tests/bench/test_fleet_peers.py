"""The other autoscalers do what their definitions say, each in a case worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaling_builders import START, make_demand, make_figures, make_load, make_replica
from tidemill_bench.fleet.fleet import FleetPolicy
from tidemill_bench.fleet.peers.dynamo import LoadPlanner, Targets
from tidemill_bench.fleet.peers.hpa import Pace, on_kv_use, on_queue
from tidemill_bench.fleet.peers.keda import UNHURRIED, token_aware
from tidemill_bench.fleet.peers.knative import Kpa
from tidemill_bench.fleet.peers.kubeai import KubeAi
from tidemill_bench.fleet.peers.llm_d import SaturationAnalyser, Thresholds
from tidemill_bench.fleet.peers.ray_serve import RayServe
from tidemill_operator.autoscaling.model import FleetLoad, GatewayLoad


def fleet(count: int, **figures: object) -> FleetLoad:
    replicas = tuple(make_replica(n, figures=make_figures(**figures)) for n in range(count))
    return make_load(count, replicas=replicas)


def ask(policy: FleetPolicy, load: FleetLoad, seconds: float = 0.0, every: float = 5.0) -> int | None:
    """Return the first number that changes something within so long, else the last one; None: never any."""
    last = None
    for step in range(int(seconds / every) + 1):
        answer = policy.decide(replace(load, at=START + step * every))
        last = last if answer is None else answer
        if last is not None and last != len(load.replicas):
            return last
    return last


def test_hpa_asks_for_the_sum_over_the_target_and_leaves_a_tenth_alone() -> None:
    assert ask(on_kv_use(0.5, 300.0), fleet(2, held_blocks=3200)) == 4
    assert ask(on_kv_use(0.5, 300.0), fleet(4, held_blocks=2150)) == 4


def test_hpa_shrinks_only_when_its_window_has_passed() -> None:
    policy = on_queue(5.0, 60.0)
    busy, idle = fleet(3, num_waiting=5), fleet(3, num_waiting=0)
    answers = [policy.decide(replace(busy if t == 0 else idle, at=START + t)) for t in range(0, 95, 5)]
    assert [n for n in answers if n is not None] == [3, 3, 3, 3, 3, 1, 1]


def test_keda_divides_the_backlog_by_the_speed_and_takes_the_larger_trigger() -> None:
    load = fleet(2, waiting_prompt_tokens=9000, held_blocks=400)
    assert ask(token_aware(2000.0, 1.5, 0.8, Pace()), load) == 6
    assert ask(token_aware(2000.0, 1.5, 0.8, UNHURRIED), load) == 3


def test_knative_panics_at_twice_the_pods_and_never_halves_more_than_once() -> None:
    policy = Kpa(10.0, 60.0)
    assert ask(policy, fleet(2, num_running=30)) == 6
    assert ask(Kpa(10.0, 60.0), fleet(8, num_running=1)) == 4


def test_kubeai_averages_from_zeros() -> None:
    policy = KubeAi(10.0, 40.0)
    assert ask(policy, fleet(2, num_running=40)) == 2
    assert ask(policy, replace(fleet(2, num_running=40)), 60.0, every=10.0) != 2


def test_ray_serve_waits_for_its_delay() -> None:
    policy = RayServe(10.0, 30.0, 600.0)
    assert ask(policy, fleet(2, num_running=30), 25.0) is None
    assert ask(RayServe(10.0, 30.0, 600.0), fleet(2, num_running=30), 40.0) == 6


@pytest.mark.parametrize(
    ("use", "wanted"), [(3000, 3), (2400, None), (400, 1)], ids=["no spare", "enough", "one too many"]
)
def test_llm_d_steps_by_one_on_spare_capacity(use: int, wanted: int | None) -> None:
    assert ask(SaturationAnalyser(Thresholds()), fleet(2, held_blocks=use)) == wanted


def test_dynamo_adds_one_where_every_worker_is_late_and_does_nothing_while_pods_come() -> None:
    targets = Targets(ttft_seconds=1.0, itl_seconds=0.2)
    late = fleet(2, waiting_prompt_tokens=20_000)
    assert ask(LoadPlanner(targets), late) == 3
    coming = make_replica(2, is_ready=False, ready_since=None, figures=None)
    assert ask(LoadPlanner(targets), replace(late, replicas=(*late.replicas, coming))) is None


def test_held_requests_count_as_ongoing() -> None:
    held = (GatewayLoad(name="g", started=START, demand=make_demand(held_requests=60)),)
    assert ask(Kpa(10.0, 60.0), replace(fleet(2, num_running=0), gateways=held)) == 6
