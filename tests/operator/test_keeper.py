"""One service's autoscaler: what it remembers, what it tells, and when that is worth a write."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling_builders import (
    NOON,
    NOON_TEXT,
    FakeDecide,
    engine_answer,
    gateway_answer,
    make_facts,
    make_policy,
    scaling_pod,
    zero_policy,
)
from tidemill_operator import names
from tidemill_operator.autoscaling.model import Clamp, Finding, HistoryEntry, Learned, ScalingState, Term
from tidemill_operator.fleet.keeper import RENEW_SECONDS, REWRITE_SECONDS, Keeper
from tidemill_operator.fleet.scraper import EngineAnswer, GatewayAnswer

NO_ENGINE = EngineAnswer(missing_reason="no answer")
NO_GATEWAY = GatewayAnswer(missing_reason="no answer")
NO_METRICS = Finding(condition="MetricsAvailable", status="False", reason="MostMissing", message="2 of 2")


def make_keeper(
    decide: FakeDecide | None = None, status: dict[str, Any] | None = None, **facts: Any
) -> Keeper:
    keeper = Keeper(make_facts(**facts), status or {}, decide or FakeDecide())
    for pod in keeper.facts.pods:
        keeper.take_engine(pod.uid, engine_answer(num_waiting=3, held_blocks=25.0))
    keeper.take_gateways({"gateway-0": gateway_answer(held_requests=1)})
    return keeper


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


STATE = ScalingState(
    learned=Learned(startup_seconds=42.0),
    history=(HistoryEntry(at=NOON - 60, from_replicas=4, to_replicas=2, reason="KV", message="m"),),
    wanted=((NOON - 100, 4), (NOON - 60, 3)),
    changes=((NOON - 60, -2),),
    last_scale_time=NOON - 60,
    last_request_time=NOON - 30,
)


def test_a_restart_forgets_nothing() -> None:
    decide = FakeDecide()
    decide.state = STATE
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    after = FakeDecide()
    reborn = make_keeper(after, {"scaling": dict(keeper.view.status)})
    reborn.decide(NOON + 5)
    assert after.states == [replace(STATE, wanted=((NOON, 2),))]


def test_until_it_decides_again_a_restart_changes_no_status() -> None:
    decide = FakeDecide()
    decide.findings = (NO_METRICS, Finding(condition="SLOMet", status="Unknown", reason="R", message="m"))
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    conditions = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
        for c in keeper.view.conditions
    ]
    status = {"scaling": dict(keeper.view.status), "conditions": [*conditions, {"type": "Ready"}]}
    reborn = make_keeper(status=status)
    assert reborn.view.status == keeper.view.status
    assert reborn.view.conditions == keeper.view.conditions
    assert reborn.view.desired is None


def test_a_lost_status_starts_from_nothing_known() -> None:
    decide = FakeDecide()
    make_keeper(decide, {}).decide(NOON)
    assert decide.states == [ScalingState()]


def test_the_same_decision_is_written_again_only_after_a_while() -> None:
    keeper = make_keeper()
    assert keeper.decide(NOON)
    keeper.take_engine("uid-1", engine_answer(num_waiting=9))
    told = [keeper.decide(NOON + second) for second in range(1, 15)]
    assert not any(told)
    shown = keeper.view
    for pod in keeper.facts.pods:
        keeper.take_engine(pod.uid, engine_answer(num_waiting=9, sampled_at=NOON + REWRITE_SECONDS))
    assert keeper.decide(NOON + REWRITE_SECONDS)
    assert keeper.view != shown


def test_between_two_writes_the_plan_sees_the_same() -> None:
    keeper = make_keeper()
    keeper.decide(NOON)
    before = keeper.view
    keeper.take_engine("uid-1", engine_answer(num_waiting=9))
    keeper.decide(NOON + 5)
    assert keeper.view is before


def test_a_service_to_which_nothing_happens_is_hardly_ever_written() -> None:
    keeper = make_keeper()
    keeper.decide(NOON)

    def tick(at: float) -> bool:
        for pod in keeper.facts.pods:
            keeper.take_engine(pod.uid, engine_answer(num_waiting=3, held_blocks=25.0, sampled_at=at))
        keeper.take_gateways({"gateway-0": gateway_answer(held_requests=1, sampled_at=at)})
        return keeper.decide(at)

    times = [NOON + 5 * n for n in range(1, 121)]
    assert sum(tick(at) for at in times) == 600 // RENEW_SECONDS


def test_another_number_is_told_at_once() -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    decide.replicas = 3
    assert keeper.decide(NOON + 1)


def test_a_condition_that_turns_is_told_at_once() -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    decide.findings = (NO_METRICS,)
    assert keeper.decide(NOON + 1)
    assert keeper.view.conditions[0].reason == "MostMissing"


def test_a_change_that_is_decided_twice_before_the_cluster_follows_is_one_change() -> None:
    class Eager(FakeDecide):
        def __call__(self, load: Any, policy: Any, state: ScalingState, now: float) -> Any:
            decision = super().__call__(load, policy, state, now)
            entry = HistoryEntry(at=now, from_replicas=2, to_replicas=self.replicas, reason="R", message="m")
            changed = replace(
                state,
                history=(entry, *state.history),
                changes=(*state.changes, (now, 1)),
                last_scale_time=now,
            )
            return replace(decision, state=changed)

    decide = Eager(replicas=3)
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    keeper.decide(NOON + 1)
    decide.replicas = 4
    keeper.decide(NOON + 2)
    assert [load.at for load in decide.loads] == [NOON, NOON + 1, NOON + 2]
    assert [entry["to"] for entry in keeper.view.status["history"]] == [4, 3]
    assert len(keeper.view.status["changes"]) == 2


def test_a_reason_that_flickers_causes_no_writes() -> None:
    decide = FakeDecide()
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    decide.reason = "KV"
    assert not keeper.decide(NOON + 1)


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


def test_status_stays_small_after_a_restless_day() -> None:
    decide = FakeDecide()
    entry = HistoryEntry(at=NOON, from_replicas=1, to_replicas=2, reason="Queue" * 9, message="x" * 900)
    decide.state = replace(
        STATE, history=(entry,) * 5, changes=tuple((NOON + n, n % 5 - 2) for n in range(500))
    )
    decide.terms = (Term(signal="TimeToFirstToken", replicas=3, message="m" * 500),) * 5
    decide.clamps = (Clamp(name="ScaleDownPace", before=9, after=8, message="m" * 500),) * 4
    decide.findings = tuple(
        Finding(condition=kind, status="False", reason="R" * 20, message="m" * 900)
        for kind in ("MetricsAvailable", "ScalingActive", "ScalingLimited", "SLOMet")
    )
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    said = sum(len(condition.message) for condition in keeper.view.conditions)
    assert len(json.dumps(dict(keeper.view.status))) + said < 6000


def violations(value: Any, schema: dict[str, Any], path: str = "status.scaling") -> list[str]:
    """Name what the API server would refuse under strict validation."""
    kind = schema["type"]
    if kind == "object":
        unknown = [f"{path}.{key} is unknown" for key in value.keys() - schema["properties"].keys()]
        known = value.keys() & schema["properties"].keys()
        return unknown + [
            v for k in known for v in violations(value[k], schema["properties"][k], f"{path}.{k}")
        ]
    if kind == "array":
        found = [f"{path} is too long"] if len(value) > schema.get("maxItems", len(value)) else []
        return found + [v for item in value for v in violations(item, schema["items"], f"{path}[]")]
    types: dict[str, type[int | str]] = {"integer": int, "string": str}
    if not isinstance(value, types[kind]):
        return [f"{path} is {value!r}, not {kind}"]
    is_long = isinstance(value, str) and len(value) > schema.get("maxLength", len(value))
    return [f"{path} is too long"] if is_long else []


def test_the_api_server_accepts_everything_that_status_may_hold() -> None:
    crd = yaml.safe_load(
        (Path(__file__).parents[2] / "crds" / f"{names.PLURAL}.{names.GROUP}.yaml").read_text()
    )
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    decide = FakeDecide()
    figures = {field.name: 1234.5678 for field in fields(Learned)}
    decide.state = replace(STATE, learned=Learned(**figures), changes=((NOON, 1),) * 200)
    decide.terms = (Term(signal="Queue", replicas=3, message="m" * 500),) * 20
    decide.clamps = (Clamp(name="Maximum", before=9, after=8, message="m" * 500),) * 20
    keeper = make_keeper(decide)
    keeper.decide(NOON)
    assert {"signals", "limits", "learned", "history", "changes"} <= keeper.view.status.keys()
    assert violations(dict(keeper.view.status), root["properties"]["scaling"]) == []
