"""What was read from the cluster about one InferenceService, as frozen values.

Pure. Knows which few facts of each object matter, and that ownership decides what counts: a pod counts only
when its ReplicaSet's Deployment belongs to the service, whatever labels it carries. Refuses to know what
follows from it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidemill_operator import names
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.model_progress import ModelProgress

Raw = Mapping[str, Any]

FINISHED_PHASES: Final = frozenset({"Failed", "Succeeded"})

# The words of the API server's own admission, which the ReplicaSet controller passes on.
NAMESPACE_LEAVING_WORDS: Final = "because it is being terminated"

_EMPTY: Final[Raw] = {}


@dataclass(frozen=True, kw_only=True)
class Termination:
    """How the engine container last ended."""

    reason: str
    message: str
    exit_code: int
    started_at: str | None
    finished_at: str | None


@dataclass(frozen=True, kw_only=True)
class PodView:
    """One replica; `container` is the one that waiting and termination are about."""

    name: str
    revision: str
    uid: str = ""
    ip: str = ""
    created_at: str = ""
    is_ready: bool = False
    is_terminating: bool = False
    is_scheduled: bool = True
    phase: str = "Running"
    phase_reason: str = ""
    phase_message: str = ""
    unscheduled_message: str = ""
    unscheduled_reason: str = ""
    container: str = names.ENGINE_CONTAINER
    waiting_reason: str = ""
    waiting_message: str = ""
    is_running: bool = False
    is_downloading: bool = False
    running_since: str | None = None
    is_routable: bool = True
    has_routable_label: bool = True
    drain_started_at: str | None = None
    deletion_cost: int = 0
    ready_changed_at: str | None = None
    termination: Termination | None = None

    @property
    def is_draining(self) -> bool:
        """Tell whether the operator has taken the replica out of routing, or someone else by its label."""
        return not self.is_routable


@dataclass(frozen=True, kw_only=True)
class DeploymentView:
    """One revision's Deployment.

    `without_surge`: what is known of a rollout that goes on without surge (scarcity.py reads it).
    """

    name: str
    revision: str
    uid: str = ""
    created_at: str = ""
    replicas: int = 0
    written_replicas: int | None = None
    existing_replicas: int = 0
    creation_failure: str = ""
    without_surge: str = ""

    @property
    def asked_replicas(self) -> int:
        """Give the replicas that the operator last asked for, whatever someone else has written since."""
        return self.replicas if self.written_replicas is None else self.written_replicas


@dataclass(frozen=True, kw_only=True)
class ChildView:
    """Any other object that bears a name which the operator would use.

    `is_leftover`: it belongs to a deleted service of the same name, and the garbage collector will take it.
    """

    kind: str
    name: str
    uid: str
    is_owned: bool
    is_leftover: bool = False


@dataclass(frozen=True, kw_only=True)
class GatewayView:
    """One gateway pod that is ready."""

    name: str
    ip: str
    node: str | None = None


@dataclass(frozen=True, kw_only=True)
class LostClaim:
    """A model name or host name that this service wants and an older one has."""

    what: str
    owner: str
    is_host: bool = False


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A write that the API server refused in this run."""

    what: str
    message: str
    reason: str = "WriteRefused"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything that one run has read besides the InferenceService itself.

    `loads` by pod UID: None before engines were asked; an engine that did not answer has None.
    """

    deployments: tuple[DeploymentView, ...] = ()
    pods: tuple[PodView, ...] = ()
    templates: Mapping[str, Raw] | None = None
    revision_numbers: Mapping[str, int] | None = None
    loads: Mapping[str, EngineLoad | None] | None = None
    children: tuple[ChildView, ...] = ()
    gateways: tuple[GatewayView, ...] = ()
    lost_claims: tuple[LostClaim, ...] = ()
    progress: Mapping[str, ModelProgress | None] | None = None
    refusal: Refusal | None = None
    is_refused_all: bool = False

    @property
    def has_leaving_pods(self) -> bool:
        """Tell whether pods go that are not drained: evicted, deleted by hand, or with their namespace."""
        return any(pod.is_terminating and not pod.is_draining for pod in self.pods)

    @property
    def namespace_is_leaving(self) -> bool:
        """Tell whether the API server makes nothing more here, since the namespace is being deleted."""
        if self.is_refused_all:
            return True
        said = [deployment.creation_failure for deployment in self.deployments]
        said += [] if self.refusal is None else [self.refusal.message]
        return any(NAMESPACE_LEAVING_WORDS in message for message in said)

    def child(self, kind: str, name: str) -> ChildView | None:
        """Find a child by kind and name."""
        return next((c for c in self.children if (c.kind, c.name) == (kind, name)), None)

    def deployment(self, revision: str) -> DeploymentView | None:
        """Find a revision's Deployment."""
        return next((d for d in self.deployments if d.revision == revision), None)

    def template(self, revision: str) -> Raw | None:
        """Find a revision's frozen pod template."""
        return (self.templates or _EMPTY).get(revision)

    def pods_of(self, revision: str) -> tuple[PodView, ...]:
        """Give a revision's pods, those that terminate included."""
        return tuple(pod for pod in self.pods if pod.revision == revision)

    def live_pods(self, revision: str | None = None) -> tuple[PodView, ...]:
        """Give the pods that still hold resources, of one revision or of all; evicted ones do not."""
        return tuple(
            pod for pod in self.pods if pod.phase not in FINISHED_PHASES and revision in {None, pod.revision}
        )

    def staying_pods(self, revision: str | None = None) -> tuple[PodView, ...]:
        """Give the live pods that nobody has deleted, those that drain included."""
        return tuple(pod for pod in self.live_pods(revision) if not pod.is_terminating)

    def on_their_way(self) -> tuple[PodView, ...]:
        """Give the pods whose model is being downloaded or read, the oldest first."""
        found = [
            pod
            for pod in self.pods
            if pod.ip
            and not pod.is_ready
            and not pod.is_terminating
            and (pod.is_running or pod.is_downloading)
        ]
        return tuple(sorted(found, key=lambda pod: (pod.created_at, pod.name)))

    def num_ready(self, revision: str | None = None) -> int:
        """Count the pods that are ready and take requests, of one revision or of all."""
        return sum(pod.is_ready and pod.is_routable for pod in self.staying_pods(revision))


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


def gateway_view(obj: Raw) -> GatewayView | None:
    """Reduce a gateway pod to its address; None unless it is ready and stays."""
    status = obj.get("status") or _EMPTY
    is_ready = _condition(status, "Ready").get("status") == "True"
    if not is_ready or obj["metadata"].get("deletionTimestamp") or not status.get("podIP"):
        return None
    return GatewayView(name=obj["metadata"]["name"], ip=status["podIP"], node=obj["spec"].get("nodeName"))


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
