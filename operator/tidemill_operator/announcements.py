"""What a run tells as events.

Pure. Knows what is worth telling and in which words. Refuses to remember what was told: the recorder does.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidemill_operator import situation
from tidemill_operator.actions import EVENT_NORMAL, EVENT_WARNING, EngineCall, Event
from tidemill_operator.last_words import CutStreams
from tidemill_operator.manifests import Context
from tidemill_operator.observed import Observed
from tidemill_operator.removal import Leaving, Progress
from tidemill_operator.replicas import Replicas
from tidemill_operator.scaling_events import scaling_events
from tidemill_operator.scaling_spec import MODE_ADVISORY

Raw = Mapping[str, Any]

_PASSING_REASONS: Final = frozenset(
    {
        "PredecessorLeaving",
        "ModelDownloading",
        "ModelLoading",
        "ReplicasStarting",
        "RollingOut",
        "Suspended",
        "NoReplicas",
        "ScaledToZero",
        "ScalingDown",
    }
)


def replica_events(context: Context, observed: Observed, replicas: Replicas) -> list[Event]:
    """Tell what happens to Deployments and replicas in this run."""
    return [
        *_put_back(context, observed),
        *_drains(observed, replicas),
        *(event for leaving in replicas.leaving if (event := _leaving(context, leaving)) is not None),
        *_rollout(context, replicas),
    ]


def scaling_changes(service: Raw, context: Context, status: Raw) -> list[Event]:
    """Tell what the autoscaler decided."""
    is_advisory = context.spec.scaling is not None and context.spec.scaling.mode == MODE_ADVISORY
    told = scaling_events(service.get("status") or {}, status, is_advisory=is_advisory)
    return [
        Event(type=EVENT_WARNING if is_warning else EVENT_NORMAL, reason=reason, message=message)
        for is_warning, reason, message in told
    ]


def cut_event(cut: CutStreams) -> Event:
    """Tell of a replica that was sent away by someone else and could not finish in time."""
    message = f"replica {cut.pod} was not drained within its grace: {cut.num_streams} streams are cut"
    return Event(type=EVENT_WARNING, reason="DrainTimeout", message=message)


def transition_events(service: Raw, status: Raw) -> list[Event]:
    """Tell when Ready changes its status or its reason."""
    before = _ready_of(service.get("status") or {})
    after = _ready_of(status)
    if (before.get("status"), before.get("reason")) == (after["status"], after["reason"]):
        return []
    is_good = after["status"] == "True" or after["reason"] in _PASSING_REASONS
    kind = EVENT_NORMAL if is_good else EVENT_WARNING
    return [Event(type=kind, reason=after["reason"], message=after["message"])]


def _put_back(context: Context, observed: Observed) -> Iterable[Event]:
    for deployment in observed.deployments:
        if deployment.replicas != deployment.asked_replicas:
            message = (
                f"Deployment {deployment.name} was scaled to {deployment.replicas} by someone else and is "
                f"put back: the InferenceService decides; use kubectl scale infsvc/{context.name} instead"
            )
            yield Event(type=EVENT_WARNING, reason="ReplicasPutBack", message=message)


def _drains(observed: Observed, replicas: Replicas) -> Iterable[Event]:
    loads = observed.loads or {}
    for change in replicas.changes:
        if change.call is EngineCall.DRAIN:
            load = loads.get(change.uid)
            left = "" if load is None else f" its {load.in_flight_requests} requests in flight"
            message = f"replica {change.pod} gets no new requests and finishes{left or ' what it has'}"
            yield Event(type=EVENT_NORMAL, reason="DrainStarted", message=message)
        elif change.call is EngineCall.TAKE_BACK:
            message = f"replica {change.pod} is needed again and goes back into service"
            yield Event(type=EVENT_NORMAL, reason="DrainCancelled", message=message)


def _leaving(context: Context, leaving: Leaving) -> Event | None:
    """Tell what ends with a replica that was not drained in time."""
    if leaving.progress is Progress.OVERDUE:
        message = (
            f"replica {leaving.pod} was not drained within spec.drain.timeout "
            f"({context.spec.drain_timeout_seconds} s): {leaving.num_streams} streams are cut"
        )
        return Event(type=EVENT_WARNING, reason="DrainTimeout", message=message)
    if leaving.progress is Progress.UNREACHABLE:
        message = (
            f"the engine of replica {leaving.pod} does not answer on its admin port; it is told to end by "
            "SIGTERM, upon which it finishes its streams within its grace period"
        )
        return Event(type=EVENT_WARNING, reason="DrainUnreachable", message=message)
    return None


def _rollout(context: Context, replicas: Replicas) -> Iterable[Event]:
    if replicas.scarcity is not None and replicas.has_just_lost_surge:
        message = (
            f"no node has a free {replicas.scarcity.device}: revision {context.spec.target_revision} gets a "
            "replica only after an old one has gone, as with maxSurge 0"
        )
        yield Event(type=EVENT_WARNING, reason="RollingWithoutSurge", message=message)
    if replicas.canary_failure is not None:
        message = (
            f"canary {replicas.failed} is stopped and gets no traffic: {replicas.canary_failure.message}; "
            f"revision {replicas.serving_revision} serves on"
        )
        yield Event(type=EVENT_WARNING, reason="CanaryFailed", message=message)


def _ready_of(status: Raw) -> Raw:
    found = (c for c in status.get("conditions") or () if c.get("type") == situation.READY)
    return next(found, {})
