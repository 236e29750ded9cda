"""Reduces objects of the API to the few facts of them that matter.

Pure. Knows the API's shapes, and that ownership decides what counts: a pod counts only when its ReplicaSet's
Deployment belongs to the service, whatever labels it carries. Refuses to know what follows from it.
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidemill_operator import names
from tidemill_operator.observed import (
    ChildView,
    DeploymentView,
    GatewayView,
    PodView,
    RouteView,
    Termination,
)

Raw = Mapping[str, Any]

_EMPTY: Final[Raw] = {}


def is_controlled_by(obj: Raw, uid: str) -> bool:
    """Tell whether the object's controller is the one with this UID."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["uid"] == uid for owner in owners)


def owned(objects: Iterable[Raw], uids: Iterable[str]) -> list[Raw]:
    """Keep the objects whose controller is one of those UIDs."""
    wanted = set(uids)
    return [obj for obj in objects if any(is_controlled_by(obj, uid) for uid in wanted)]


def child_view(obj: Raw, service: Raw) -> ChildView:
    """Reduce an object to its identity and whose it is."""
    metadata, uid = obj["metadata"], service["metadata"]["uid"]
    owners = metadata.get("ownerReferences") or ()
    namesake = (names.KIND, service["metadata"]["name"])
    return ChildView(
        kind=obj["kind"],
        name=metadata["name"],
        uid=metadata["uid"],
        is_owned=is_controlled_by(obj, uid),
        is_leftover=any((o.get("kind"), o.get("name")) == namesake and o["uid"] != uid for o in owners),
    )


def deployment_view(obj: Raw) -> DeploymentView:
    """Reduce a Deployment to its counts and its failure to create pods."""
    metadata, status = obj["metadata"], obj.get("status") or _EMPTY
    written = (metadata.get("annotations") or _EMPTY).get(names.ANNOTATION_REPLICAS, "")
    failure = _condition(status, "ReplicaFailure")
    return DeploymentView(
        name=metadata["name"],
        revision=revision_of(obj),
        uid=metadata["uid"],
        created_at=metadata.get("creationTimestamp") or "",
        replicas=obj["spec"].get("replicas", 1),
        written_replicas=int(written) if written.isdigit() else None,
        existing_replicas=status.get("replicas", 0),
        creation_failure=failure.get("message", "") if failure.get("status") == "True" else "",
        without_surge=(metadata.get("annotations") or _EMPTY).get(names.ANNOTATION_WITHOUT_SURGE, ""),
    )


def pod_view(obj: Raw) -> PodView:
    """Reduce an engine pod to what its conditions and its engine container say."""
    metadata, status = obj["metadata"], obj.get("status") or _EMPTY
    ready, scheduled = _condition(status, "Ready"), _condition(status, "PodScheduled")
    container = _telling_status(status)
    waiting = (container.get("state") or _EMPTY).get("waiting") or _EMPTY
    labels, annotations = metadata.get("labels") or _EMPTY, metadata.get("annotations") or _EMPTY
    is_unscheduled = scheduled.get("status") == "False"
    return PodView(
        name=metadata["name"],
        revision=revision_of(obj),
        uid=metadata.get("uid", ""),
        ip=status.get("podIP") or "",
        created_at=metadata.get("creationTimestamp") or "",
        is_ready=ready.get("status") == "True",
        is_terminating=bool(metadata.get("deletionTimestamp")),
        is_scheduled=bool((obj.get("spec") or _EMPTY).get("nodeName")),
        phase=status.get("phase", ""),
        phase_reason=status.get("reason", ""),
        phase_message=status.get("message", ""),
        unscheduled_message=scheduled.get("message", "") if is_unscheduled else "",
        unscheduled_reason=scheduled.get("reason", "") if is_unscheduled else "",
        container=container.get("name", names.ENGINE_CONTAINER),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        is_running="running" in (container.get("state") or _EMPTY),
        is_downloading=_is_downloading(status),
        running_since=((container.get("state") or _EMPTY).get("running") or _EMPTY).get("startedAt"),
        is_routable=labels.get(names.LABEL_ROUTABLE) != names.ROUTABLE_NO,
        has_routable_label=names.LABEL_ROUTABLE in labels,
        drain_started_at=annotations.get(names.ANNOTATION_DRAIN_STARTED_AT),
        deletion_cost=_whole(annotations.get(names.ANNOTATION_DELETION_COST, "")),
        ready_changed_at=ready.get("lastTransitionTime"),
        termination=_termination(container),
    )


def _is_downloading(status: Raw) -> bool:
    """Tell whether the container that downloads the model runs now."""
    before = (s for s in status.get("initContainerStatuses") or () if s["name"] == names.DOWNLOAD_CONTAINER)
    return any("running" in (s.get("state") or _EMPTY) for s in before)


def gateway_views(pods: Iterable[Raw]) -> tuple[tuple[GatewayView, ...], tuple[GatewayView, ...]]:
    """Reduce gateway pods to addresses: those that are ready and stay, and those that leave.

    One that leaves may still serve what it accepted, as long as it runs.
    """
    staying, leaving = [], []
    for obj in pods:
        status = obj.get("status") or _EMPTY
        if not status.get("podIP"):
            continue
        view = GatewayView(name=obj["metadata"]["name"], ip=status["podIP"], node=obj["spec"].get("nodeName"))
        if not obj["metadata"].get("deletionTimestamp"):
            staying += [view] if _condition(status, "Ready").get("status") == "True" else []
        elif status.get("phase") == "Running":
            leaving.append(view)
    return tuple(staying), tuple(leaving)


def admin_token_in(secret: Raw, key: str = names.ADMIN_TOKEN_KEY) -> str:
    """Read the token of the engines' admin port from its Secret; empty where there is none."""
    encoded = (secret.get("data") or _EMPTY).get(key, "")
    return b64decode(encoded).decode(errors="replace").strip()


def former_token_in(secret: Raw) -> str:
    """Read the token before that one, which an operator that has begun since has not seen."""
    return admin_token_in(secret, names.FORMER_TOKEN_KEY)


def route_view(obj: Raw) -> RouteView:
    """Reduce an HTTPRoute to what its Gateways say of it, in their words."""
    parents = (obj.get("status") or _EMPTY).get("parents") or ()
    generation = obj["metadata"].get("generation")
    for wanted in obj["spec"].get("parentRefs") or ():
        answers = [p for p in parents if _is_same_parent(p.get("parentRef") or _EMPTY, wanted)]
        problem = _route_problem(answers, generation)
        if problem:
            return RouteView(problem=f"Gateway {wanted['name']} {problem}")
    return RouteView()


def _is_same_parent(answered: Raw, wanted: Raw) -> bool:
    return all(answered.get(key) == wanted.get(key) for key in ("name", "sectionName")) and (
        wanted.get("namespace") in {None, answered.get("namespace")}
    )


def _route_problem(answers: Iterable[Raw], generation: int | None) -> str:
    """Say what a Gateway's controllers have against a route; empty when one has taken it as it is."""
    problem = "has not answered for the route; is its controller running?"
    for answer in answers:
        accepted, resolved = (_condition(answer, kind) for kind in ("Accepted", "ResolvedRefs"))
        if accepted.get("observedGeneration") != generation:
            continue
        refused = next((c for c in (accepted, resolved) if c.get("status") == "False"), None)
        if refused is None and accepted.get("status") == "True":
            return ""
        if refused is not None:
            problem = f"refuses the route: {refused.get('reason', '')}: {refused.get('message', '')}"
    return problem


def revision_of(obj: Raw) -> str:
    """Read the revision that an object belongs to from its label."""
    return str((obj["metadata"].get("labels") or _EMPTY).get(names.LABEL_REVISION, ""))


def _whole(text: str) -> int:
    """Read a number as Kubernetes does; anything else counts as none."""
    try:
        return int(text)
    except ValueError:
        return 0


def _condition(status: Raw, kind: str) -> Raw:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), _EMPTY)


def _telling_status(status: Raw) -> Raw:
    """Choose the container that tells why a pod is not ready: one before the engine that fails, else it."""
    before: Raw | None = next((s for s in status.get("initContainerStatuses") or () if _has_failed(s)), None)
    if before is not None:
        return before
    statuses = status.get("containerStatuses") or ()
    return next((s for s in statuses if s.get("name") == names.ENGINE_CONTAINER), _EMPTY)


def _has_failed(container: Raw) -> bool:
    """Tell whether an init container or native sidecar keeps the engine from starting."""
    state = container.get("state") or _EMPTY
    if container.get("started") or (state.get("terminated") or _EMPTY).get("exitCode") == 0:
        return False
    waiting = (state.get("waiting") or _EMPTY).get("reason", "")
    return bool(_termination(container)) or waiting not in {"", "PodInitializing", "ContainerCreating"}


def _termination(container: Raw) -> Termination | None:
    for state in (container.get("state") or _EMPTY, container.get("lastState") or _EMPTY):
        ended = state.get("terminated")
        if ended:
            return Termination(
                reason=ended.get("reason", ""),
                message=ended.get("message", ""),
                exit_code=ended.get("exitCode", 0),
                started_at=ended.get("startedAt"),
                finished_at=ended.get("finishedAt"),
            )
    return None
