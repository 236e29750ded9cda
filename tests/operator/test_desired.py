"""Who decides how many replicas there should be."""

from __future__ import annotations

from typing import Any

import pytest

from operator_builders import make_deployment, make_observed, make_service
from tidemill_operator.desired import desired_replicas
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.spec import parse

AUTO: dict[str, Any] = {"replicas": None, "scaling": {"minReplicas": 2, "maxReplicas": 6}}
TO_ZERO: dict[str, Any] = {
    "replicas": None,
    "scaling": {"minReplicas": 0, "maxReplicas": 6, "scaleToZero": {}},
}
ADVISORY: dict[str, Any] = {
    "replicas": 4,
    "scaling": {"mode": "Advisory", "minReplicas": 1, "maxReplicas": 6},
}
RUNNING = (make_deployment("aaaa", 3), make_deployment("bbbb", 1))
BY_HAND = (make_deployment("aaaa", 9, written_replicas=3),)

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any, ScalingView | None, int]] = {
    "suspension wants none, whoever else decides": ({**AUTO, "suspend": True}, {}, RUNNING, None, 0),
    "spec.replicas decides without scaling": ({"replicas": 7}, {}, RUNNING, None, 7),
    "spec.replicas decides in Advisory, whatever is advised": (
        ADVISORY,
        {"desiredReplicas": 2},
        RUNNING,
        ScalingView(desired=1),
        4,
    ),
    "the decision decides in Auto": (AUTO, {}, RUNNING, ScalingView(desired=5), 5),
    "a decision from before the bounds changed stays within them": (
        AUTO,
        {},
        RUNNING,
        ScalingView(desired=9),
        6,
    ),
    "a new service starts at its least": (AUTO, {}, (), None, 2),
    "a new service that may go to zero starts with one": (TO_ZERO, {}, (), None, 1),
    "a service at zero whose status is lost stays there": (
        TO_ZERO,
        {},
        (make_deployment("aaaa", 0),),
        None,
        0,
    ),
    "without a decision it is held at the last one": (AUTO, {"desiredReplicas": 5}, RUNNING, None, 5),
    "an autoscaler that has none yet is no decision": (
        AUTO,
        {"desiredReplicas": 5},
        RUNNING,
        ScalingView(status={"reason": "Starting"}),
        5,
    ),
    "with status lost it is held at the Deployments' count": (AUTO, {}, RUNNING, None, 4),
    "scaling a Deployment by hand decides nothing": (AUTO, {}, BY_HAND, None, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_decides_so_that(case: str) -> None:
    spec, status, deployments, scaling, expected = CASES[case]
    observed = make_observed(deployments=deployments)
    assert desired_replicas(parse(make_service(spec)), status, observed, scaling) == expected


NEW_REVISION = parse(make_service(AUTO)).revision
ROLLING = (make_deployment(NEW_REVISION, 2), make_deployment("0ld0ld00", 3))
ROLLED = (make_deployment(NEW_REVISION, 5), make_deployment("0ld0ld00", 0))


def decided(deployments: Any, scaling: int, **rollout: Any) -> int:
    spec = parse(make_service({**AUTO, "rollout": rollout}))
    observed = make_observed(deployments=deployments)
    return desired_replicas(spec, {"desiredReplicas": 5}, observed, ScalingView(desired=scaling))


def test_a_rollout_lets_the_autoscaler_add_and_not_take_away() -> None:
    assert decided(ROLLING, 3) == 5
    assert decided(ROLLING, 6) == 6


def test_when_the_rollout_is_over_the_autoscaler_takes_away_again() -> None:
    assert decided(ROLLED, 3) == 3


def test_a_canary_which_may_last_for_days_holds_nothing_up() -> None:
    assert decided(ROLLING, 3, canary={"trafficPercent": 10}) == 3
