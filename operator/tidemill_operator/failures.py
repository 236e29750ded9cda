"""Why replicas do not become ready, found in what their pods and Deployment say.

Pure. Knows the words of scheduler, kubelet, ReplicaSet controller and our engine's termination message.
Refuses to count restarts or time: the same failure must read the same in every run, or status would be
written for ever.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidemill_operator import names
from tidemill_operator.observed import DeploymentView, PodView, Termination

MAX_MESSAGE_LENGTH: Final = 600

_REASON: Final = re.compile(r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$")
_PULL_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_BACK_OFF_LEAD_IN: Final = re.compile(r'^Back-off pulling image "[^"]*": ErrImagePull: ')
_PULL_TRANSIENT: Final = "ErrImagePull"
# The kubelet or its container runtime can't make a container.
CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_STOPPED_EXIT_CODES: Final = frozenset({0, 137, 143})
_GPU_LACKING: Final = re.compile(r"Insufficient \S+/gpu\b")
_SCHEDULING_GATED: Final = "SchedulingGated"

# Reasons that mean: there is no room for the replica, whatever the engine is like.
CAPACITY_REASONS: Final = frozenset(
    {"InsufficientGPU", "Unschedulable", "SchedulingGated", "QuotaExceeded", "PodCreationRefused"}
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One reason for which replicas are not ready; `stalls` when waiting alone will not help."""

    reason: str
    message: str
    stalls: bool = True
    pod: str | None = None
    exit_code: int | None = None
    time: str | None = None


def find_failure(
    pods: Iterable[PodView], deployment: DeploymentView | None, load_timeout_seconds: int
) -> Failure | None:
    """Find the most telling failure of one revision; None when its replicas are merely on their way."""
    found = [
        failure
        for pod in sorted(pods, key=lambda pod: pod.name)
        if not pod.is_ready and not pod.is_terminating
        if (failure := pod_failure(pod, load_timeout_seconds)) is not None
    ]
    created = _creation_failure(deployment)
    if created is not None:
        found.append(created)
    return min(found, key=_rank, default=None)


def pod_failure(pod: PodView, load_timeout_seconds: int) -> Failure | None:
    """Find what keeps one pod from being ready; None when nothing has gone wrong."""
    if pod.unscheduled_message and not pod.is_scheduled:
        return _unscheduled(pod)
    if pod.waiting_reason in _PULL_REASONS | CONFIG_REASONS:
        return _waiting(pod)
    if pod.phase == "Failed":
        reason = pod.phase_reason if _REASON.match(pod.phase_reason) else "PodFailed"
        return Failure(
            reason=reason, message=_shorten(pod.phase_message or "the pod has failed"), pod=pod.name
        )
    if pod.termination is not None:
        return _engine_failure(pod, pod.termination, load_timeout_seconds)
    if pod.is_routable and _was_ready_in_this_run(pod):
        message = (
            "the engine runs and does not answer its readiness probe: it is faulty, or cannot be reached"
        )
        return Failure(reason="ProbeFailed", message=message, stalls=False, pod=pod.name)
    return None


def _unscheduled(pod: PodView) -> Failure:
    """Say why the scheduler leaves a pod alone; a cluster autoscaler or a queue may still help."""
    said = f"no node can take pod {pod.name}: {pod.unscheduled_message}"
    reason = "InsufficientGPU" if _GPU_LACKING.search(pod.unscheduled_message) else "Unschedulable"
    if pod.unscheduled_reason == _SCHEDULING_GATED:
        reason = _SCHEDULING_GATED
        said = f"pod {pod.name} waits for its scheduling gates to be removed: {pod.unscheduled_message}"
    return Failure(reason=reason, message=_shorten(said), stalls=False, pod=pod.name)


def _waiting(pod: PodView) -> Failure:
    """Say why the kubelet cannot start a container."""
    if pod.waiting_reason in CONFIG_REASONS:
        message = f"container {pod.container} cannot be made: {pod.waiting_message}"
        return Failure(reason=pod.waiting_reason, message=_shorten(message), pod=pod.name)
    reason = "ImagePullBackOff" if pod.waiting_reason == _PULL_TRANSIENT else pod.waiting_reason
    message = f"the image of container {pod.container} cannot be pulled: {_pull_message(pod)}"
    return Failure(reason=reason, message=_shorten(message), pod=pod.name)


def _engine_failure(pod: PodView, ended: Termination, load_timeout_seconds: int) -> Failure:
    reason, message = _engine_words(pod, ended, load_timeout_seconds)
    return Failure(
        reason=reason,
        message=_shorten(message),
        pod=pod.name,
        exit_code=ended.exit_code,
        time=ended.finished_at,
    )


def _engine_words(pod: PodView, ended: Termination, load_timeout_seconds: int) -> tuple[str, str]:
    if ended.reason == "OOMKilled":
        return (
            "OOMKilled",
            f"{_subject(pod)} needed more memory than its limit allows (spec.resources.limits.memory for the "
            "engine) and was killed",
        )
    said = _parse_message(ended.message)
    if said is not None:
        return said
    if _has_overrun(pod, ended, load_timeout_seconds):
        return "LoadTimeout", (
            f"the model was not ready within {load_timeout_seconds} s (spec.model.loadTimeout) and the "
            "engine was restarted; raise loadTimeout if the model is only slow to load"
        )
    text = _last_lines(ended.message)
    detail = f": {text}" if text else ""
    if ended.exit_code in _STOPPED_EXIT_CODES and pod.container == names.ENGINE_CONTAINER:
        return "ProbeFailed", (
            f"the engine was stopped from outside (exit code {ended.exit_code}) and started again, which the "
            f"kubelet does when it no longer answers {names.HEALTH_LIVE_PATH}{detail}"
        )
    return "CrashLoopBackOff", f"{_subject(pod)} ended with exit code {ended.exit_code}{detail}"


def _subject(pod: PodView) -> str:
    return "the engine" if pod.container == names.ENGINE_CONTAINER else f"container {pod.container}"


def _parse_message(text: str) -> tuple[str, str] | None:
    """Read the JSON that our engine leaves when it ends on its own account."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    reason, message = said.get("reason"), said.get("message")
    if not isinstance(reason, str) or not _REASON.match(reason) or len(reason) > 100:
        return None
    return reason, str(message or reason)


def _was_ready_in_this_run(pod: PodView) -> bool:
    """Tell a replica that has stopped answering from one that is on its way up."""
    if not pod.is_running or pod.running_since is None or pod.ready_changed_at is None:
        return False
    return _instant(pod.ready_changed_at) > _instant(pod.running_since)


def _has_overrun(pod: PodView, ended: Termination, load_timeout_seconds: int) -> bool:
    """Tell a start cut off by the kubelet from a crash: stopped after that long, never ready in that run."""
    if ended.exit_code not in _STOPPED_EXIT_CODES or not ended.started_at or not ended.finished_at:
        return False
    lasted = (_instant(ended.finished_at) - _instant(ended.started_at)).total_seconds()
    was_ready = pod.ready_changed_at is not None and _instant(pod.ready_changed_at) > _instant(
        ended.started_at
    )
    return lasted >= 0.9 * load_timeout_seconds and not was_ready


def _creation_failure(deployment: DeploymentView | None) -> Failure | None:
    if deployment is None or not deployment.creation_failure:
        return None
    message = deployment.creation_failure
    reason = "QuotaExceeded" if "exceeded quota" in message else "PodCreationRefused"
    return Failure(reason=reason, message=_shorten(f"pods cannot be created: {message}"))


def _rank(failure: Failure) -> tuple[bool, bool]:
    """Put what waiting may cure last, and what names a pod first."""
    return (not failure.stalls, failure.pod is None)


def _pull_message(pod: PodView) -> str:
    """Drop the kubelet's varying lead-in, so that back-off and attempt read the same."""
    return _BACK_OFF_LEAD_IN.sub("", pod.waiting_message)


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_LENGTH else text[: MAX_MESSAGE_LENGTH - 3] + "..."


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)
