"""Decisions on the way to zero replicas, at zero, and back."""

from dataclasses import replace

import pytest

from autoscaling_builders import (
    START,
    TO_ZERO,
    Scenario,
    gateways,
    make_demand,
    make_load,
    make_policy,
    make_replica,
    with_figures,
)
from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.autoscaling.model import ScalingState


def test_to_zero_in_one_step_is_wrong_five_replicas_go_down_by_the_rules_and_to_zero_after_idle_after() -> (
    None
):
    policy = make_policy(min_replicas=0, scale_to_zero=TO_ZERO)
    scenario = Scenario(policy)
    scenario.run(with_figures(make_load(5), held_blocks=3000), 300, rate=6.0)
    ended, load, seen = scenario.now, make_load(5), []
    while scenario.now < ended + 1500:
        demand = make_demand(last_request_time=ended)
        load = make_load(load.current_replicas, gateways=gateways(demand))
        load = with_figures(load, num_running=0, held_blocks=0)
        decision = scenario.step(load)
        if decision.replicas != load.current_replicas:
            seen.append((scenario.now - ended, decision.replicas))
            load = make_load(decision.replicas)
    assert [count for at, count in seen if at < 600][-1:] == [1]
    assert seen[-1][1] == 0
    assert seen[-1][0] >= 600
    assert scenario.last.replicas == 0


def test_a_service_at_zero_wakes_for_held_requests_with_as_many_replicas_as_they_fill() -> None:
    policy = make_policy(min_replicas=0, scale_to_zero=TO_ZERO)
    held = make_load(0, gateways=gateways(make_demand(held_requests=40)))
    assert desired_replicas(held, policy, ScalingState(), START).replicas == 3
    asked = make_load(0, activation_request_time=START - 5)
    decision = desired_replicas(asked, policy, ScalingState(), START)
    assert (decision.replicas, decision.reason) == (1, "Activation")


@pytest.mark.parametrize("num_starting", [1, 2, 3])
def test_replicas_that_wake_count_for_the_held_requests_before_they_are_ready(num_starting: int) -> None:
    policy = make_policy(min_replicas=0, scale_to_zero=TO_ZERO, queue_length_per_replica=1.0)
    starting = tuple(
        make_replica(n, is_ready=False, ready_since=None, figures=None) for n in range(num_starting)
    )
    held = make_load(0, replicas=starting, gateways=gateways(make_demand(held_requests=16)))
    held = replace(held, current_replicas=num_starting)
    assert desired_replicas(held, policy, ScalingState(), START).replicas == num_starting


def test_a_wish_from_before_the_service_went_to_zero_wakes_nothing() -> None:
    policy = make_policy(min_replicas=0, scale_to_zero=TO_ZERO)
    asked = make_load(0, activation_request_time=START - 20)
    went_later = ScalingState(last_scale_time=START - 5)
    assert desired_replicas(asked, policy, went_later, START).replicas == 0
    went_before = ScalingState(last_scale_time=START - 60)
    assert desired_replicas(asked, policy, went_before, START).replicas == 1


def test_a_service_at_zero_stays_there_while_nobody_asks() -> None:
    policy = make_policy(min_replicas=0, scale_to_zero=TO_ZERO)
    scenario = Scenario(policy)
    scenario.run(make_load(0), 600)
    assert {decision.replicas for decision in scenario.decisions} == {0}


def test_never_to_zero_before_the_first_ready() -> None:
    policy = make_policy(min_replicas=0, scale_to_zero=TO_ZERO)
    starting = make_replica(0, is_ready=False, ready_since=None, figures=None)
    load = make_load(1, replicas=(starting,), has_been_ready=False)
    scenario = Scenario(policy)
    scenario.run(load, 3600)
    assert {decision.replicas for decision in scenario.decisions} == {1}
