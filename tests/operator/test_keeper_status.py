"""What a keeper tells through status: when that is worth a write, and what a restart reads of it."""

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
    make_keeper,
    make_policy,
)
from tidemill_operator import names
from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.autoscaling.model import Clamp, Finding, HistoryEntry, Learned, ScalingState, Term
from tidemill_operator.autoscaling.policy import SloTargets
from tidemill_operator.fleet.keeper import RENEW_SECONDS, REWRITE_SECONDS, Keeper

NO_METRICS = Finding(condition="MetricsAvailable", status="False", reason="MostMissing", message="2 of 2")
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


@pytest.mark.parametrize(
    ("sentence", "away", "changes", "expected"),
    [
        ("it says what it said", 30.0, {}, "True"),
        ("nobody has measured it for five minutes", 400.0, {}, "Unknown"),
        ("what is promised may have changed", 30.0, {"generation": 4}, "Unknown"),
    ],
)
def test_what_was_said_of_the_objectives_stands_over_a_restart(
    sentence: str, away: float, changes: dict[str, Any], expected: str
) -> None:
    policy = make_policy(slo=SloTargets(time_to_first_token_seconds=1.0))
    said = {"type": "SLOMet", "status": "True", "reason": "WithinObjectives", "message": ""}
    condition = said | {"observedGeneration": 3}
    status = {"scaling": {"updateTime": NOON_TEXT}, "conditions": [condition]}
    keeper = Keeper(make_facts(policy=policy, **{"generation": 3} | changes), status, desired_replicas)
    keeper.decide(NOON + away)
    found = {condition.type: condition for condition in keeper.view.conditions}["SLOMet"]
    assert found.status == expected, sentence


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
