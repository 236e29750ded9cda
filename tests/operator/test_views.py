"""Which container of a pod is asked why the pod is not ready, and what Gateways say of a route."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill_operator import names
from tidemill_operator.views import pod_view, route_view

ENGINE = {"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}


def make_raw_pod(*before: dict[str, Any], **labels: str) -> dict[str, Any]:
    """Build a pod as the API returns it, with containers that start before the engine."""
    return {
        "metadata": {"name": "chat-0", "labels": labels},
        "spec": {"nodeName": "n1"},
        "status": {"initContainerStatuses": list(before), "containerStatuses": [ENGINE]},
    }


@pytest.mark.parametrize(
    "before",
    [
        {"name": "proxy", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}},
        {"name": "proxy", "state": {"terminated": {"exitCode": 2}}},
        {
            "name": "proxy",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 2}},
        },
    ],
    ids=["not pulled", "ended badly", "crashes"],
)
def test_a_container_that_keeps_the_engine_from_starting_tells_why(before: dict[str, Any]) -> None:
    assert pod_view(make_raw_pod(before)).container == "proxy"


@pytest.mark.parametrize(
    "before",
    [
        {"name": "proxy", "state": {"waiting": {"reason": "PodInitializing"}}},
        {"name": "proxy", "state": {"terminated": {"exitCode": 0}}},
        {
            "name": "proxy",
            "started": True,
            "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 2}},
        },
    ],
    ids=["waits its turn", "is done", "runs again"],
)
def test_otherwise_the_engine_does(before: dict[str, Any]) -> None:
    assert pod_view(make_raw_pod(before)).container == "engine"


def test_a_pod_is_routable_until_its_label_says_no() -> None:
    assert pod_view(make_raw_pod()).is_routable
    assert pod_view(make_raw_pod(**{names.LABEL_ROUTABLE: "true"})).is_routable
    assert not pod_view(make_raw_pod(**{names.LABEL_ROUTABLE: "false"})).is_routable


GATEWAY = {"name": "public", "namespace": "web"}


def make_route(*parents: dict[str, Any]) -> dict[str, Any]:
    """Build an HTTPRoute of its second generation as the API returns it."""
    return {
        "metadata": {"name": "chat", "generation": 2},
        "spec": {"parentRefs": [GATEWAY]},
        "status": {"parents": list(parents)},
    }


def make_answer(
    accepted: str = "True", resolved: str = "True", generation: int = 2, **parent: str
) -> dict[str, Any]:
    """Build what a Gateway's controller says of a route."""
    words = {"observedGeneration": generation, "reason": "Why", "message": "the words"}
    statuses = {"Accepted": accepted, "ResolvedRefs": resolved}
    conditions = [{"type": kind, "status": status, **words} for kind, status in statuses.items()]
    return {"parentRef": {**GATEWAY, **parent}, "conditions": conditions}


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        pytest.param([make_answer()], "", id="taken"),
        pytest.param([make_answer(accepted="False"), make_answer()], "", id="taken by one of two"),
        pytest.param([], "has not answered", id="nobody answers"),
        pytest.param([make_answer(generation=1)], "has not answered", id="an answer to an older route"),
        pytest.param([make_answer(name="other")], "has not answered", id="another Gateway's answer"),
        pytest.param([make_answer(sectionName="http")], "has not answered", id="one listener's answer"),
        pytest.param([make_answer(accepted="False")], "Why: the words", id="refused"),
        pytest.param([make_answer(resolved="False")], "Why: the words", id="the Service is not found"),
    ],
)
def test_a_route_is_well_when_its_gateways_have_taken_it_as_it_is(
    answers: list[dict[str, Any]], problem: str
) -> None:
    found = route_view(make_route(*answers)).problem
    assert problem in found
    assert bool(found) == bool(problem)
