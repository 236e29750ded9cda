"""The conditions of an InferenceService: ordered chains of checks, the first that applies gives the answer.

Pure. Knows which words status uses and what each means: Ready means routable. Refuses to know how the facts
were found and when conditions changed; `merge` adds the times.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill_operator.failures import CAPACITY_REASONS, Failure
from tidemill_operator.route_condition import route_ready
from tidemill_operator.scaling_spec import MODE_ADVISORY
from tidemill_operator.situation import (
    ABLE_TO_SCALE,
    AVAILABLE,
    CAPACITY_AVAILABLE,
    MODEL_READY,
    NEWER_TEMPLATE,
    PROGRESSING,
    READY,
    RECONCILING,
    SCALING_ACTIVE,
    STALLED,
    SUSPENDED,
    Condition,
    Situation,
)


def evaluate(situation: Situation) -> list[Condition]:
    """Give all conditions in the order in which status shows them."""
    always = [
        _ready(situation),
        _model_ready(situation),
        _available(situation),
        _progressing(situation),
        route_ready(situation),
        _scaling_active(situation),
        _able_to_scale(situation),
        _capacity_available(situation),
        _suspended(situation),
    ]
    sometimes = [_reconciling(situation), _stalled(situation), _newer_template(situation)]
    every = [*always, *(condition for condition in sometimes if condition is not None)]
    own = {condition.type: condition for condition in situation.scaling_conditions}
    return [own.pop(condition.type, condition) for condition in every] + list(own.values())


def merge(
    conditions: Iterable[Condition], previous: Sequence[Mapping[str, Any]], now: str, generation: int
) -> list[dict[str, Any]]:
    """Write conditions in the API's form; the time of a condition changes only with its status."""
    before = {condition.get("type"): condition for condition in previous}
    merged = []
    for condition in conditions:
        status = condition.status
        old = before.get(condition.type, {})
        is_same = old.get("status") == status and bool(old.get("lastTransitionTime"))
        merged.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if is_same else now,
                "reason": condition.reason,
                "message": condition.message,
            }
        )
    return merged


def _ready(situation: Situation) -> Condition:
    route = route_ready(situation)
    is_open = situation.num_gateways > 0 and not situation.keys_problem
    if situation.is_at_zero and is_open:
        return _ready_at_zero(situation)
    blocked = None if situation.is_at_zero and situation.keys_problem else _blocked(READY, situation)
    if blocked is not None:
        return blocked
    if situation.num_ready > 0 and is_open:
        message = f"{situation.num_ready} of {situation.desired} replicas are ready"
        return Condition(type=READY, is_true=True, reason="ReplicasReady", message=message)
    if situation.num_ready > 0 or situation.is_at_zero:
        return Condition(type=READY, is_true=False, reason=route.reason, message=route.message)
    return _not_ready(READY, situation)


def _ready_at_zero(situation: Situation) -> Condition:
    """Say that the first request wakes the service, unless the last one could not."""
    if situation.activation_failure:
        message = situation.activation_failure
        return Condition(type=READY, is_true=False, reason="ActivationFailed", message=message)
    known = situation.cold_start_seconds
    lasts = "" if known is None else f"; a start has taken about {known:.0f} s"
    message = f"no replica runs because nobody asks for the model; the first request starts one{lasts}"
    return Condition(type=READY, is_true=True, reason="ScaledToZero", message=message)


def _model_ready(situation: Situation) -> Condition:
    blocked = _blocked(MODEL_READY, situation)
    if blocked is not None:
        return blocked
    if situation.num_updated_ready > 0:
        message = "the model is loaded and answers"
        return Condition(type=MODEL_READY, is_true=True, reason="ModelLoaded", message=message)
    return _not_ready(MODEL_READY, situation)


def _available(situation: Situation) -> Condition:
    blocked = _blocked(AVAILABLE, situation)
    if blocked is not None:
        return blocked
    needed = max(1, situation.least_ready)
    message = f"{situation.num_ready} replicas are ready, at least {needed} of {situation.desired} must be"
    if situation.num_ready >= needed:
        return Condition(type=AVAILABLE, is_true=True, reason="MinimumReplicasReady", message=message)
    if situation.num_ready == 0:
        return _not_ready(AVAILABLE, situation)
    return Condition(type=AVAILABLE, is_true=False, reason="TooFewReplicasReady", message=message)


def _progressing(situation: Situation) -> Condition:
    stopped = _stalling(situation)
    if stopped is not None:
        return Condition(type=PROGRESSING, is_true=False, reason=stopped.reason, message=stopped.message)
    if situation.is_settled:
        message = f"{situation.num_updated_ready} of {situation.desired} replicas are ready and up to date"
        return Condition(type=PROGRESSING, is_true=False, reason="Settled", message=message)
    reason, message = _movement(situation)
    return Condition(type=PROGRESSING, is_true=True, reason=reason, message=message)


def _scaling_active(situation: Situation) -> Condition:
    if situation.scaling is None:
        reason, message = "ManualReplicas", "spec.replicas decides; no spec.scaling is given"
    elif situation.is_suspended:
        reason, message = "Suspended", "spec.suspend is true: nothing is decided until it is not"
    elif situation.scaling.mode == MODE_ADVISORY:
        reason, message = "NoDecisionYet", "spec.replicas decides; advice follows as soon as figures are read"
    else:
        reason, message = "NoDecisionYet", f"held at {situation.desired} replicas until figures are read"
    return Condition(type=SCALING_ACTIVE, is_true=False, reason=reason, message=message)


def _able_to_scale(situation: Situation) -> Condition:
    """Say whether the number of replicas could be changed now, whoever decides it."""
    stopper = situation.problem
    failure = situation.failure
    if stopper is None and failure is not None and failure.pod is None and failure.stalls:
        stopper = failure
    if stopper is not None:
        return Condition(type=ABLE_TO_SCALE, is_true=False, reason=stopper.reason, message=stopper.message)
    if situation.is_rolling_out and situation.desired > 0:
        message = "a rollout is under way: replicas are added to the new revision, and none is taken away"
        return Condition(type=ABLE_TO_SCALE, is_true=True, reason="ScalesUpOnly", message=message)
    message = "replicas can be added and taken away"
    return Condition(type=ABLE_TO_SCALE, is_true=True, reason="ReadyForNewScale", message=message)


def _capacity_available(situation: Situation) -> Condition:
    """Say whether the cluster has room for every replica that is wanted."""
    failure = situation.failure
    if failure is not None and failure.reason in CAPACITY_REASONS:
        return Condition(
            type=CAPACITY_AVAILABLE, is_true=False, reason=failure.reason, message=failure.message
        )
    if situation.lacking_device and situation.is_rolling_out:
        message = (
            f"no node has a free {situation.lacking_device} for the new revision beside the old one: the "
            "rollout takes an old replica away before it adds a new one"
        )
        return Condition(type=CAPACITY_AVAILABLE, is_true=False, reason="NoRoomToSurge", message=message)
    message = "no replica waits for a node, a GPU or a quota"
    return Condition(type=CAPACITY_AVAILABLE, is_true=True, reason="NoReplicaWaits", message=message)


def _suspended(situation: Situation) -> Condition:
    if situation.is_suspended:
        message = "spec.suspend is true: replicas are stopped, everything else is kept"
        return Condition(type=SUSPENDED, is_true=True, reason="Suspended", message=message)
    return Condition(type=SUSPENDED, is_true=False, reason="NotSuspended", message="spec.suspend is not set")


def _reconciling(situation: Situation) -> Condition | None:
    if situation.is_settled or _stalled(situation) is not None:
        return None
    reason, message = _movement(situation)
    return Condition(type=RECONCILING, is_true=True, reason=reason, message=message)


def _stalled(situation: Situation) -> Condition | None:
    stopped = _stalling(situation)
    if stopped is None:
        return None
    return Condition(type=STALLED, is_true=True, reason=stopped.reason, message=stopped.message)


def _newer_template(situation: Situation) -> Condition | None:
    if not situation.has_newer_template:
        return None
    message = (
        "this version of the operator would make the pods differently; nothing restarts by itself. Set the "
        "annotation serving.tidemill.dev/restartedAt to take the new template"
    )
    return Condition(type=NEWER_TEMPLATE, is_true=True, reason="OperatorChanged", message=message)


def _blocked(kind: str, situation: Situation) -> Condition | None:
    """Answer for every condition that cannot be true whatever the pods do."""
    if situation.problem is not None:
        problem = situation.problem
        return Condition(type=kind, is_true=False, reason=problem.reason, message=problem.message)
    if situation.is_suspended:
        return Condition(type=kind, is_true=False, reason="Suspended", message="spec.suspend is true")
    if situation.is_at_zero:
        message = "no replica runs because nobody asks for the model"
        return Condition(type=kind, is_true=False, reason="ScaledToZero", message=message)
    if situation.desired == 0:
        message = "spec.replicas is 0: set it to 1 or more to serve"
        return Condition(type=kind, is_true=False, reason="NoReplicas", message=message)
    return None


def _not_ready(kind: str, situation: Situation) -> Condition:
    if situation.failure is not None:
        failure = situation.failure
        where = f" (pod {failure.pod})" if failure.pod and failure.pod not in failure.message else ""
        return Condition(type=kind, is_true=False, reason=failure.reason, message=failure.message + where)
    reason, message = _movement(situation)
    return Condition(type=kind, is_true=False, reason=reason, message=message)


def _movement(situation: Situation) -> tuple[str, str]:
    """Say in which phase a service is that is on its way."""
    counts = f"{situation.num_updated_ready} of {situation.desired} replicas are ready"
    stopper = situation.problem or situation.write_failure
    if stopper is not None:
        return stopper.reason, stopper.message
    if situation.desired == 0:
        return "Stopping", f"{situation.num_pods} replicas are finishing their streams"
    if situation.is_rolling_out:
        plain = ("RollingOut", f"{counts} in the new revision; the old one still has replicas")
        return situation.rollout_note or plain
    if situation.num_updated_ready >= situation.desired:
        leaving = situation.num_pods - situation.num_updated_ready
        return "ScalingDown", f"{counts}; {leaving} more finish their streams and go"
    return _starting(situation, counts)


def _starting(situation: Situation, counts: str) -> tuple[str, str]:
    far = "" if situation.progress is None else f": {situation.progress.told()}"
    if situation.is_loading:
        return "ModelLoading", f"{counts}; the model is being loaded{far}"
    if situation.is_downloading:
        return "ModelDownloading", f"{counts}; the model is being downloaded{far}"
    return "ReplicasStarting", f"{counts}; replicas are being created"


def _stalling(situation: Situation) -> Failure | None:
    """Find what will not pass by waiting."""
    found = (situation.problem, situation.rollout_failure, situation.failure)
    return next((f for f in found if f is not None and f.stalls), None)
