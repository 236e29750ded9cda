"""What a source asks of a plan: how far a model is, who is asked and when, and words for a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from operator_builders import IMAGE, NOW, make_observed, make_pod, make_service, owned_child
from tidemill_operator.model_progress import ModelProgress, furthest, parse_progress
from tidemill_operator.observed import Refusal
from tidemill_operator.plan import Plan, make_plan
from tidemill_operator.spec import revision_of
from tidemill_operator.views import pod_view

GIB = 1 << 30
HUB = {"model": {"uri": "hf://org/model"}}


def progress(loaded: int, total: int = 100, *, is_loading: bool = False) -> ModelProgress:
    return ModelProgress(is_loading=is_loading, loaded_bytes=loaded, total_bytes=total)


def plan_for(spec: dict[str, Any], *pods: Any, **changes: Any) -> Plan:
    secret = owned_child("Secret", "chat-admin-token")
    return make_plan(make_service(spec), make_observed(pods=pods, children=(secret,), **changes), IMAGE, NOW)


def test_reads_what_downloader_and_engine_answer() -> None:
    downloading = {"phase": "downloading", "version": "c0ffee", "loaded_bytes": 1, "total_bytes": 4}
    assert parse_progress(downloading) == progress(1, 4)
    loading = {"phase": "loading", "loaded_bytes": 4, "total_bytes": 4}
    assert parse_progress(loading) == progress(4, 4, is_loading=True)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"phase": "ready", "loaded_bytes": 1, "total_bytes": 1},
        {"phase": "loading", "loaded_bytes": 0, "total_bytes": 0},
        {"phase": "loading", "loaded_bytes": 5, "total_bytes": 4},
        {"phase": "loading", "loaded_bytes": True, "total_bytes": "4"},
    ],
)
def test_what_says_nothing_is_nothing(answer: dict[str, Any]) -> None:
    assert parse_progress(answer) is None


def test_tells_of_the_replica_that_is_furthest() -> None:
    near = progress(90)
    assert furthest([None, progress(10), near]) == near
    assert furthest([near, progress(1, is_loading=True)]) == progress(1, is_loading=True)
    assert furthest([None]) is None


def test_a_pod_downloads_while_that_container_runs() -> None:
    pod: dict[str, Any] = {"metadata": {"name": "a"}, "status": {}}
    assert not pod_view(pod).is_downloading
    pod["status"]["initContainerStatuses"] = [{"name": "download", "state": {"running": {}}}]
    assert pod_view(pod).is_downloading


def test_pods_are_asked_while_their_model_is_on_its_way_and_status_tells() -> None:
    revision = plan_for(HUB).status["revision"]["update"]
    pod = make_pod(revision, uid="u", ip="10.0.0.1", is_running=False, is_downloading=True)
    asking = plan_for(HUB, pod)
    assert asking.asks_progress == (pod,)
    assert asking.again_seconds == 3.0
    assert "model" not in asking.status
    told = plan_for(HUB, pod, progress={"u": progress(GIB, 4 * GIB)})
    assert told.status["model"] == {"loadedBytes": GIB, "totalBytes": 4 * GIB}
    assert told.again_seconds == 30.0
    ready = next(c for c in told.status["conditions"] if c["type"] == "Ready")
    assert (ready["reason"], ready["status"]) == ("ModelDownloading", "False")
    assert "25 % of 4.0 GiB" in ready["message"]


def test_nobody_is_asked_about_a_model_in_the_image_or_when_all_are_ready() -> None:
    assert plan_for({}, make_pod("x", ip="10.0.0.1")).asks_progress == ()
    assert plan_for(HUB, make_pod("x", ip="10.0.0.1", is_ready=True)).asks_progress == ()
    assert plan_for(HUB, make_pod("x", ip="10.0.0.1", is_ready=True)).again_seconds is None


def test_a_cluster_without_image_volumes_is_told_what_it_lacks() -> None:
    refusal = Refusal(what="PATCH /d", message="must specify a volume type", reason="InvalidTemplate")
    plan = plan_for({"model": {"uri": "oci://registry.example.com/org/model:v1"}}, refusal=refusal)
    assert len(plan.checks) == 1
    ready = next(c for c in plan.status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "InvalidTemplate"
    assert ready["message"].startswith("oci:// needs a cluster with image volumes; PATCH /d: must specify")


@pytest.mark.parametrize(
    ("uri", "beginning"),
    [
        (
            "oci://registry.example.com/org/model:v1",
            "oci:// needs nodes whose container runtime",
        ),
        ("sim://demo", "container engine cannot be made"),
    ],
)
def test_a_container_that_cannot_be_made_is_told_with_what_its_source_needs(uri: str, beginning: str) -> None:
    spec = {"model": {"uri": uri}}
    pod = make_pod(
        revision_of(make_service(spec)),
        waiting_reason="CreateContainerError",
        waiting_message="no such mount",
        is_running=False,
    )
    message = plan_for(spec, pod).status["model"]["lastFailure"]["message"]
    assert message.startswith(beginning)
    assert message.endswith("no such mount")
