"""Each kind of failure, as the pod and the Deployment show it."""

from __future__ import annotations

import json

import pytest

from operator_builders import make_deployment, make_pod, make_termination, ready_pods
from tidemill_operator.failures import Failure, find_failure, pod_failure
from tidemill_operator.observed import PodView

SAID = json.dumps({"reason": "ModelLoadFailed", "message": "no such file: /models/x.gguf"})
FAILURES = {
    "no GPU is left": (
        make_pod(
            "r",
            is_scheduled=False,
            is_running=False,
            unscheduled_message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        ),
        "InsufficientGPU",
        "Insufficient nvidia.com/gpu",
    ),
    "no node has the label that the pods ask for": (
        make_pod(
            "r",
            is_scheduled=False,
            is_running=False,
            unscheduled_message="0/1 nodes are available: 1 node(s) didn't match Pod's node affinity.",
        ),
        "Unschedulable",
        "didn't match Pod's node affinity",
    ),
    "a queue holds the pod back by a scheduling gate": (
        make_pod(
            "r",
            is_scheduled=False,
            is_running=False,
            unscheduled_reason="SchedulingGated",
            unscheduled_message="Scheduling is blocked due to non-empty scheduling gates",
        ),
        "SchedulingGated",
        "non-empty scheduling gates",
    ),
    "the engine stops answering after it was ready": (
        make_pod("r", running_since="2026-11-29T11:00:00Z", ready_changed_at="2026-11-29T11:30:00Z"),
        "ProbeFailed",
        "readiness probe",
    ),
    "the kubelet restarts an engine that hangs": (
        make_pod(
            "r",
            ready_changed_at="2026-11-29T11:00:05Z",
            termination=make_termination(exit_code=137, finished_at="2026-11-29T12:00:00Z"),
        ),
        "ProbeFailed",
        "/health/live",
    ),
    "the download of the model is not allowed": (
        make_pod(
            "r",
            waiting_reason="CrashLoopBackOff",
            termination=make_termination(
                message=json.dumps({"reason": "DownloadUnauthorized", "message": "401 for hf://org/model"})
            ),
        ),
        "DownloadUnauthorized",
        "401 for hf://org/model",
    ),
    "a container before the engine cannot be pulled": (
        make_pod("r", container="proxy", waiting_reason="ErrImagePull", waiting_message="no such host"),
        "ImagePullBackOff",
        "container proxy cannot be pulled: no such host",
    ),
    "a container before the engine crashes": (
        make_pod("r", container="proxy", termination=make_termination(exit_code=1, message="boom")),
        "CrashLoopBackOff",
        "container proxy ended with exit code 1: boom",
    ),
    "the image cannot be pulled": (
        make_pod("r", waiting_reason="ImagePullBackOff", waiting_message='Back-off pulling image "x:1"'),
        "ImagePullBackOff",
        "x:1",
    ),
    "the first attempt to pull the image fails": (
        make_pod("r", waiting_reason="ErrImagePull", waiting_message="not found"),
        "ImagePullBackOff",
        "not found",
    ),
    "a secret that the environment needs is missing": (
        make_pod("r", waiting_reason="CreateContainerConfigError", waiting_message='secret "s" not found'),
        "CreateContainerConfigError",
        'secret "s" not found',
    ),
    "the engine says why it ended": (
        make_pod(
            "r", waiting_reason="CrashLoopBackOff", termination=make_termination(message=SAID, exit_code=3)
        ),
        "ModelLoadFailed",
        "no such file: /models/x.gguf",
    ),
    "the engine ends without a word": (
        make_pod("r", waiting_reason="CrashLoopBackOff", termination=make_termination(exit_code=139)),
        "CrashLoopBackOff",
        "exit code 139",
    ),
    "the engine leaves only its log": (
        make_pod("r", termination=make_termination(message="Traceback\n  ...\nValueError: boom\n")),
        "CrashLoopBackOff",
        "ValueError: boom",
    ),
    "the engine leaves JSON that is not ours": (
        make_pod("r", termination=make_termination(message='{"reason": "two words"}')),
        "CrashLoopBackOff",
        "two words",
    ),
    "memory runs out": (
        make_pod("r", termination=make_termination(reason="OOMKilled", exit_code=137, message=SAID)),
        "OOMKilled",
        "memory",
    ),
    "the node evicts the pod": (
        make_pod("r", phase="Failed", phase_reason="Evicted", phase_message="The node was low on memory"),
        "Evicted",
        "low on memory",
    ),
    "the model takes too long to load": (
        make_pod(
            "r",
            ready_changed_at="2026-11-29T10:59:59Z",
            termination=make_termination(exit_code=0, finished_at="2026-11-29T11:01:01Z"),
        ),
        "LoadTimeout",
        "loadTimeout",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_names_the_failure_when(case: str) -> None:
    pod, reason, words = FAILURES[case]
    failure = pod_failure(pod, load_timeout_seconds=60)
    assert failure is not None
    assert failure.reason == reason
    assert words in failure.message
    assert failure.pod == pod.name


def test_a_replica_that_served_and_was_stopped_did_not_overrun_its_load_timeout() -> None:
    pod = make_pod(
        "r",
        ready_changed_at="2026-11-29T11:00:30Z",
        termination=make_termination(exit_code=143, finished_at="2026-11-29T12:00:00Z"),
    )
    failure = pod_failure(pod, load_timeout_seconds=60)
    assert failure is not None
    assert failure.reason == "ProbeFailed"


@pytest.mark.parametrize(
    "pod",
    [
        make_pod("r", running_since="2026-11-29T11:00:00Z", ready_changed_at="2026-11-29T10:59:00Z"),
        make_pod(
            "r",
            running_since="2026-11-29T11:00:00Z",
            ready_changed_at="2026-11-29T11:30:00Z",
            is_routable=False,
        ),
    ],
    ids=["not ready yet in this run", "drains"],
)
def test_a_replica_that_is_rightly_not_ready_has_not_failed_its_probe(pod: PodView) -> None:
    assert pod_failure(pod, 60) is None


def test_a_crash_reads_the_same_while_it_waits_and_while_it_runs_again() -> None:
    ended = make_termination(message=SAID)
    waiting = make_pod("r", is_running=False, waiting_reason="CrashLoopBackOff", termination=ended)
    assert pod_failure(waiting, 60) == pod_failure(make_pod("r", termination=ended), 60)


def test_a_failed_pull_reads_the_same_in_attempt_and_back_off() -> None:
    text = 'failed to pull and unpack image "x:1": not found'
    attempt = make_pod("r", waiting_reason="ErrImagePull", waiting_message=text)
    back_off = make_pod(
        "r",
        waiting_reason="ImagePullBackOff",
        waiting_message=f'Back-off pulling image "x:1": ErrImagePull: {text}',
    )
    first, second = pod_failure(attempt, 60), pod_failure(back_off, 60)
    assert first is not None
    assert second is not None
    assert first.reason == second.reason
    assert first.message == second.message


@pytest.mark.parametrize("pod", [make_pod("r"), make_pod("r", waiting_reason="ContainerCreating")])
def test_finds_nothing_wrong_with_a_replica_on_its_way(pod: PodView) -> None:
    assert find_failure([pod], make_deployment("r", 1), 60) is None


def test_ignores_the_past_of_a_replica_that_is_ready() -> None:
    pod = make_pod("r", is_ready=True, termination=make_termination())
    assert find_failure([pod], make_deployment("r", 1), 60) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: q, requested: pods=1', "QuotaExceeded"),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', "PodCreationRefused"),
    ],
)
def test_tells_why_pods_cannot_be_created(message: str, reason: str) -> None:
    failure = find_failure([], make_deployment("r", 1, creation_failure=message), 60)
    assert failure is not None
    assert failure.reason == reason
    assert message in failure.message


def test_prefers_what_waiting_will_not_cure() -> None:
    pods = [FAILURES["no GPU is left"][0], FAILURES["the engine says why it ended"][0], *ready_pods("r", 1)]
    failure = find_failure(pods, None, 60)
    assert isinstance(failure, Failure)
    assert failure.reason == "ModelLoadFailed"


def test_keeps_messages_within_what_status_can_hold() -> None:
    pod = make_pod("r", termination=make_termination(message="x" * 5000))
    failure = pod_failure(pod, 60)
    assert failure is not None
    assert len(failure.message) <= 600
