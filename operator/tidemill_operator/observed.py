"""What was read from the cluster about one InferenceService, as frozen values.

Pure. Knows which few facts of each object matter. Refuses to know the objects' own form (views.py), and what
follows from the facts.
"""

from collections.abc import Mapping
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
    """One gateway pod's address."""

    name: str
    ip: str
    node: str | None = None


@dataclass(frozen=True, kw_only=True)
class RouteView:
    """What became of the service's HTTPRoute; `problem` is empty when every Gateway has taken it."""

    problem: str = ""


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
    `route`: None where there is no HTTPRoute; `knows_routes` says whether there can be one.
    `keys_problem`: why no client is let in, although the spec names a Secret with API keys.
    """

    deployments: tuple[DeploymentView, ...] = ()
    pods: tuple[PodView, ...] = ()
    templates: Mapping[str, Raw] | None = None
    revision_numbers: Mapping[str, int] | None = None
    loads: Mapping[str, EngineLoad | None] | None = None
    children: tuple[ChildView, ...] = ()
    gateways: tuple[GatewayView, ...] = ()
    leaving_gateways: tuple[GatewayView, ...] = ()
    """Those that no new client is sent to: they may still hold requests."""
    lost_claims: tuple[LostClaim, ...] = ()
    route: RouteView | None = None
    knows_routes: bool = True
    keys_problem: str = ""
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
