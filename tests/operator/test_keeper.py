"""One service's autoscaler: what it remembers, and what it makes of answers and silence."""

from __future__ import annotations

from typing import Any

import pytest

from scaling_builders import (
    NOON,
    NOON_TEXT,
    FakeDecide,
    make_facts,
    make_keeper,
    make_policy,
    scaling_pod,
    zero_policy,
)
from tidemill_operator.fleet.keeper import Keeper
from tidemill_operator.fleet.scraper import EngineAnswer, GatewayAnswer

NO_ENGINE = EngineAnswer(missing_reason="no answer")
NO_GATEWAY = GatewayAnswer(missing_reason="no answer")


def test_tells_the_plan_what_is_decided_and_by_which_figures() -> None:
    keeper = make_keeper(FakeDecide(replicas=5))
    assert keeper.decide(NOON)
    view = keeper.view
    assert view.desired == 5
    expected = {
        "desiredReplicas": 5,
        "unclampedReplicas": 6,
        "reason": "Queue",
        "message": "7 requests wait",
        "kvCacheUtilizationPercent": 25,
        "queueLength": 7,
        "updateTime": NOON_TEXT,
        "firstReadyTime": NOON_TEXT,
        "lastReadyTime": NOON_TEXT,
    }
    assert {name: view.status.get(name) for name in expected} == expected


def test_decides_nothing_before_it_was_asked_to() -> None:
    assert make_keeper().view.desired is None


def test_figures_that_nobody_gave_are_absent_and_not_zero() -> None:
    keeper = Keeper(make_facts(), {}, FakeDecide())
    keeper.take_engine("uid-1", NO_ENGINE)
    keeper.take_gateways({"gateway-0": NO_GATEWAY})
    keeper.decide(NOON)
    assert not {"queueLength", "kvCacheUtilizationPercent"} & keeper.view.status.keys()


@pytest.mark.parametrize(("age", "is_known"), [(15.0, True), (15.5, False)])
def test_a_silent_engines_figures_stay_known_until_they_are_stale(age: float, is_known: bool) -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide)
    keeper.take_engine("uid-1", NO_ENGINE)
    keeper.decide(NOON + age)
    replica = next(r for r in decide.loads[0].replicas if r.uid == "uid-1")
    assert (replica.figures is not None) == is_known
    assert ("no answer" in replica.missing_reason) != is_known


@pytest.mark.parametrize(("age", "is_known"), [(15.0, True), (15.5, False)])
def test_a_silent_gateway_is_not_an_idle_one(age: float, is_known: bool) -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide)
    keeper.take_gateways({"gateway-0": NO_GATEWAY})
    keeper.decide(NOON + age)
    (gateway,) = decide.loads[0].gateways
    assert (gateway.demand is not None) == is_known


def test_a_gateway_that_does_not_know_the_service_yet_is_silent() -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide)
    keeper.take_gateways({"gateway-0": GatewayAnswer(started=1.0, services={})})
    keeper.decide(NOON)
    assert decide.loads[0].gateways[0].demand is None


def test_a_deleted_pods_figures_go_at_once_even_when_another_has_its_address() -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide)
    successor = scaling_pod(3, ip="10.0.0.1")
    keeper.look(make_facts(pods=(successor, scaling_pod(2))), NOON)
    keeper.decide(NOON)
    figures = {replica.uid: replica.figures for replica in decide.loads[0].replicas}
    assert figures.keys() == {"uid-3", "uid-2"}
    assert figures["uid-3"] is None
    assert keeper.view.status["queueLength"] == 4


def test_a_draining_pod_is_told_as_draining() -> None:
    decide = FakeDecide()
    pods = (scaling_pod(1, is_routable=False), scaling_pod(2, is_terminating=True), scaling_pod(3))
    keeper = make_keeper(decide, pods=pods)
    keeper.decide(NOON)
    assert [replica.is_draining for replica in decide.loads[0].replicas] == [True, True, False]


def test_a_pod_without_a_node_is_told_as_coming_and_unschedulable() -> None:
    decide = FakeDecide()
    waiting = scaling_pod(2, is_ready=False, is_scheduled=False, ip="", phase="Pending")
    keeper = make_keeper(decide, pods=(scaling_pod(1), waiting))
    keeper.decide(NOON)
    replica = decide.loads[0].replicas[1]
    assert (replica.is_unschedulable, replica.is_starting) == (True, True)
    assert waiting not in keeper.facts.askable_pods


@pytest.mark.parametrize(
    ("changes", "is_urgent"),
    [
        ({}, False),
        ({"current_replicas": 3}, False),
        ({"activation_request_time": NOON}, True),
        ({"policy": make_policy(max_replicas=3)}, True),
        ({"is_suspended": True}, True),
    ],
)
def test_a_wish_to_wake_and_a_changed_spec_do_not_wait_for_their_turn(
    changes: dict[str, Any], is_urgent: bool
) -> None:
    assert make_keeper().look(make_facts(**changes), NOON) == is_urgent


def test_one_that_was_never_ready_is_told_as_such_until_it_is() -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide, pods=(scaling_pod(1, is_ready=False),))
    keeper.decide(NOON)
    keeper.look(make_facts(pods=(scaling_pod(1),)), NOON + 1)
    keeper.decide(NOON + 1)
    reborn = FakeDecide()
    make_keeper(reborn, {"scaling": dict(keeper.view.status)}, pods=()).decide(NOON + 2)
    assert [load.has_been_ready for load in (*decide.loads, *reborn.loads)] == [False, True, True]


def at_zero(asked_ago: float | None, ready_ago: float | None) -> str:
    asked = None if asked_ago is None else NOON - asked_ago
    scaling = {} if ready_ago is None else {"lastReadyTime": _text(NOON - ready_ago)}
    keeper = make_keeper(
        FakeDecide(replicas=0),
        {"scaling": scaling},
        pods=(),
        policy=zero_policy(),
        activation_request_time=asked,
    )
    keeper.decide(NOON)
    return keeper.view.activation_failure


def _text(at: float) -> str:
    from tidemill_operator.autoscaling.state_json import time_text

    return time_text(at)


@pytest.mark.parametrize(
    ("asked_ago", "ready_ago", "has_failed"),
    [
        pytest.param(None, None, False, id="nobody asked"),
        pytest.param(400, None, True, id="asked long ago and never ready"),
        pytest.param(400, 500, True, id="asked after the last ready replica"),
        pytest.param(400, 350, False, id="asked and then ready"),
        pytest.param(100, 500, False, id="still waking"),
    ],
)
def test_an_activation_has_failed_when_no_replica_was_ready_in_time(
    asked_ago: float | None, ready_ago: float | None, has_failed: bool
) -> None:
    assert bool(at_zero(asked_ago, ready_ago)) == has_failed


def test_a_suspended_service_is_not_decided_about() -> None:
    keeper = make_keeper()
    keeper.decide(NOON)
    assert keeper.suspend()
    assert keeper.view.desired is None
    assert keeper.document is None
    assert not keeper.suspend()
    assert keeper.decide(NOON + 1), "after the suspension the first decision is news"
