"""Every condition in every situation that tells it apart."""

from __future__ import annotations

from typing import Any

import pytest

from operator_builders import NOW
from tidemill_operator.autoscaling.policy import ScaleToZero, ScalingPolicy
from tidemill_operator.conditions import evaluate, merge
from tidemill_operator.failures import Failure
from tidemill_operator.observed import LostClaim
from tidemill_operator.situation import Condition, Situation

CRASH = Failure(reason="ModelLoadFailed", message="no such file", pod="chat-0")
NO_GPU = Failure(reason="InsufficientGPU", message="Insufficient nvidia.com/gpu", stalls=False, pod="chat-1")
QUOTA = Failure(reason="QuotaExceeded", message="exceeded quota: q, requested: pods=1")


def situation(**changes: Any) -> Situation:
    values: dict[str, Any] = {
        "desired": 2,
        "least_ready": 2,
        "num_ready": 2,
        "num_updated_ready": 2,
        "num_pods": 2,
        "num_gateways": 1,
        **changes,
    }
    return Situation(**values)


NOTHING_READY = {"num_ready": 0, "num_updated_ready": 0}
TABLE: dict[str, tuple[Situation, dict[str, tuple[bool, str] | None]]] = {
    "all replicas are ready": (
        situation(),
        {
            "Ready": (True, "ReplicasReady"),
            "ModelReady": (True, "ModelLoaded"),
            "Available": (True, "MinimumReplicasReady"),
            "Progressing": (False, "Settled"),
            "RouteReady": (True, "GatewayReady"),
            "ScalingActive": (False, "ManualReplicas"),
            "AbleToScale": (True, "ReadyForNewScale"),
            "CapacityAvailable": (True, "NoReplicaWaits"),
            "Suspended": (False, "NotSuspended"),
            "Reconciling": None,
            "Stalled": None,
            "NewerTemplateAvailable": None,
        },
    ),
    "the API server fails at what the operator writes": (
        situation(write_failure=Failure(reason="WriteFailed", message="a webhook is down", stalls=False)),
        {
            "Ready": (True, "ReplicasReady"),
            "Available": (True, "MinimumReplicasReady"),
            "Progressing": (True, "WriteFailed"),
            "Reconciling": (True, "WriteFailed"),
            "Stalled": None,
        },
    ),
    "pods are being created": (
        situation(**NOTHING_READY),
        {
            "Ready": (False, "ReplicasStarting"),
            "Progressing": (True, "ReplicasStarting"),
            "Reconciling": (True, "ReplicasStarting"),
            "Stalled": None,
        },
    ),
    "the model is being loaded": (
        situation(**NOTHING_READY, is_loading=True),
        {"Ready": (False, "ModelLoading"), "ModelReady": (False, "ModelLoading")},
    ),
    "the model cannot be loaded": (
        situation(**NOTHING_READY, failure=CRASH),
        {
            "Ready": (False, "ModelLoadFailed"),
            "ModelReady": (False, "ModelLoadFailed"),
            "Available": (False, "ModelLoadFailed"),
            "Progressing": (False, "ModelLoadFailed"),
            "Stalled": (True, "ModelLoadFailed"),
            "Reconciling": None,
        },
    ),
    "no node has a free GPU": (
        situation(**NOTHING_READY, failure=NO_GPU),
        {
            "Ready": (False, "InsufficientGPU"),
            "CapacityAvailable": (False, "InsufficientGPU"),
            "AbleToScale": (True, "ReadyForNewScale"),
            "Reconciling": (True, "ReplicasStarting"),
            "Stalled": None,
        },
    ),
    "a quota keeps the second replica out": (
        situation(num_ready=1, num_updated_ready=1, num_pods=1, failure=QUOTA),
        {
            "Ready": (True, "ReplicasReady"),
            "CapacityAvailable": (False, "QuotaExceeded"),
            "AbleToScale": (False, "QuotaExceeded"),
            "Stalled": (True, "QuotaExceeded"),
        },
    ),
    "one of two replicas crashes": (
        situation(num_ready=1, num_updated_ready=1, failure=CRASH),
        {
            "Ready": (True, "ReplicasReady"),
            "Available": (False, "TooFewReplicasReady"),
            "Stalled": (True, "ModelLoadFailed"),
        },
    ),
    "a new revision cannot be loaded and the old one serves": (
        situation(num_updated_ready=0, num_pods=3, is_rolling_out=True, failure=CRASH),
        {
            "Ready": (True, "ReplicasReady"),
            "ModelReady": (False, "ModelLoadFailed"),
            "Available": (True, "MinimumReplicasReady"),
            "Progressing": (False, "ModelLoadFailed"),
        },
    ),
    "a new revision is on its way": (
        situation(num_updated_ready=1, num_pods=3, is_rolling_out=True),
        {
            "Ready": (True, "ReplicasReady"),
            "Progressing": (True, "RollingOut"),
            "AbleToScale": (True, "ScalesUpOnly"),
            "Reconciling": (True, "RollingOut"),
        },
    ),
    "no gateway is ready": (
        situation(num_gateways=0),
        {
            "Ready": (False, "NoGatewayReady"),
            "RouteReady": (False, "NoGatewayReady"),
            "ModelReady": (True, "ModelLoaded"),
        },
    ),
    "an older service claims the model's name": (
        situation(lost_claims=(LostClaim(what="chat", owner="prod/older"),)),
        {"Ready": (True, "ReplicasReady"), "RouteReady": (False, "ServedNameConflict")},
    ),
    "an older service has the host": (
        situation(lost_claims=(LostClaim(what="chat.example.com", owner="prod/older", is_host=True),)),
        {"Ready": (True, "ReplicasReady"), "RouteReady": (False, "HostConflict")},
    ),
    "the Secret with the API keys is missing": (
        situation(keys_problem="the Secret team-keys does not exist"),
        {"Ready": (False, "APIKeysMissing"), "RouteReady": (False, "APIKeysMissing")},
    ),
    "the Secret with the API keys is missing at zero": (
        situation(
            desired=0,
            num_pods=0,
            scaling=ScalingPolicy(min_replicas=0, max_replicas=2, scale_to_zero=ScaleToZero()),
            keys_problem="the Secret team-keys does not exist",
            **NOTHING_READY,
        ),
        {"Ready": (False, "APIKeysMissing"), "Available": (False, "ScaledToZero")},
    ),
    "a Gateway refuses the route": (
        situation(route_problem=("RouteNotAccepted", "Gateway public refuses the route")),
        {"Ready": (True, "ReplicasReady"), "RouteReady": (False, "RouteNotAccepted")},
    ),
    "the service is suspended and its last pods leave": (
        situation(is_suspended=True, desired=0, num_ready=1),
        {
            "Ready": (False, "Suspended"),
            "ModelReady": (False, "Suspended"),
            "Available": (False, "Suspended"),
            "Suspended": (True, "Suspended"),
            "Progressing": (True, "Stopping"),
        },
    ),
    "no replicas are wanted": (
        situation(desired=0, num_ready=0, num_updated_ready=0, num_pods=0),
        {"Ready": (False, "NoReplicas"), "Progressing": (False, "Settled"), "Reconciling": None},
    ),
    "replicas are being taken away": (
        situation(desired=1, num_pods=2),
        {"Ready": (True, "ReplicasReady"), "Progressing": (True, "ScalingDown")},
    ),
    "the spec is invalid": (
        situation(problem=Failure(reason="InvalidSpec", message="spec.model.uri: is required")),
        {
            "Ready": (False, "InvalidSpec"),
            "AbleToScale": (False, "InvalidSpec"),
            "Progressing": (False, "InvalidSpec"),
            "Stalled": (True, "InvalidSpec"),
            "Reconciling": None,
        },
    ),
    "a deleted service of the same name has left something behind": (
        situation(problem=Failure(reason="PredecessorLeaving", message="Secret x", stalls=False)),
        {
            "Ready": (False, "PredecessorLeaving"),
            "Progressing": (True, "PredecessorLeaving"),
            "Reconciling": (True, "PredecessorLeaving"),
            "Stalled": None,
        },
    ),
    "nothing was decided yet": (
        situation(scaling=ScalingPolicy(mode="Auto", min_replicas=2, max_replicas=4)),
        {"ScalingActive": (False, "NoDecisionYet")},
    ),
    "the operator would make pods differently now": (
        situation(has_newer_template=True),
        {"NewerTemplateAvailable": (True, "OperatorChanged"), "Ready": (True, "ReplicasReady")},
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_tells_the_truth_when(case: str) -> None:
    given, expected = TABLE[case]
    found = {condition.type: (condition.is_true, condition.reason) for condition in evaluate(given)}
    assert {name: found.get(name) for name in expected} == expected


def test_every_condition_carries_a_message() -> None:
    assert all(c.message for given, _ in TABLE.values() for c in evaluate(given))


def test_names_the_pod_that_failed() -> None:
    ready = evaluate(situation(**NOTHING_READY, failure=CRASH))[0]
    assert ready.message == "no such file (pod chat-0)"


def test_keeps_the_time_of_a_condition_whose_status_is_the_same() -> None:
    condition = Condition(type="Ready", is_true=False, reason="B", message="b")
    before = [
        {"type": "Ready", "status": "False", "reason": "A", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    ]
    merged = merge([condition], before, NOW, 4)
    assert merged[0]["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert (merged[0]["reason"], merged[0]["observedGeneration"]) == ("B", 4)


def test_dates_a_condition_whose_status_has_changed() -> None:
    condition = Condition(type="Ready", is_true=True, reason="A", message="a")
    before = [
        {"type": "Ready", "status": "False", "reason": "A", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    ]
    assert merge([condition], before, NOW, 4)[0]["lastTransitionTime"] == NOW


def test_rebuilds_conditions_when_status_was_lost() -> None:
    assert [c["lastTransitionTime"] for c in merge(evaluate(situation()), [], NOW, 1)] == [NOW] * 9


ZERO = ScalingPolicy(min_replicas=0, max_replicas=4, scale_to_zero=ScaleToZero())


def at_zero(**changes: Any) -> dict[str, Condition]:
    values = {"scaling": ZERO, "desired": 0, "num_ready": 0, "num_updated_ready": 0, "num_pods": 0, **changes}
    return {condition.type: condition for condition in evaluate(situation(**values))}


def test_at_zero_by_policy_the_service_is_ready_and_not_available() -> None:
    found = at_zero(cold_start_seconds=12.4)
    assert (found["Ready"].status, found["Ready"].reason) == ("True", "ScaledToZero")
    assert "about 12 s" in found["Ready"].message
    assert (found["Available"].status, found["Available"].reason) == ("False", "ScaledToZero")


def test_at_zero_after_an_activation_that_failed_the_service_is_not_ready() -> None:
    found = at_zero(activation_failure="no replica was ready within 300 s")
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "ActivationFailed")


def test_at_zero_without_a_gateway_nobody_could_wake_the_service() -> None:
    assert at_zero(num_gateways=0)["Ready"].is_true is False


def test_zero_replicas_by_hand_are_not_zero_by_policy() -> None:
    found = at_zero(scaling=None)
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "NoReplicas")


def test_what_the_autoscaler_cannot_tell_is_unknown() -> None:
    own = (Condition(type="SLOMet", is_true=False, is_unknown=True, reason="TooFewSamples", message="m"),)
    merged = merge(evaluate(situation(scaling_conditions=own)), [], "2026-11-29T12:00:00Z", 1)
    assert {c["type"]: c["status"] for c in merged}["SLOMet"] == "Unknown"
