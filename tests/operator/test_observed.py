"""Which container of a pod is asked why the pod is not ready."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill_operator import names
from tidemill_operator.views import pod_view

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
