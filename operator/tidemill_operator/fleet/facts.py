"""What the autoscaler must know of one service besides its load, and how both become one `FleetLoad`.

Pure. Knows that a pod counts by its owner chain alone (`observed.py` has followed it), that a figure is known
by its pod's UID, and when it is too old. Refuses to ask anybody and to decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill_operator.autoscaling.model import (
    EngineFigures,
    FleetLoad,
    GatewayDemand,
    GatewayLoad,
    ReplicaLoad,
    ScalingPolicy,
)
from tidemill_operator.autoscaling.state_json import unix_time
from tidemill_operator.desired import followed, has_other_revisions, held_replicas, is_rolling_out
from tidemill_operator.keys import Key
from tidemill_operator.observed import FINISHED_PHASES, GatewayView, Observed, PodView
from tidemill_operator.spec import ServiceSpec

Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ServiceFacts:
    """One service as the latest reconcile saw it."""

    key: Key
    uid: str
    generation: int = 0
    policy: ScalingPolicy
    pods: tuple[PodView, ...] = ()
    gateways: tuple[GatewayView, ...] = ()
    current_replicas: int = 0
    held_replicas: int = 0
    """What the plan keeps to without a decision."""
    has_other_revisions: bool = False
    """Whether a rollout or a canary is under way."""
    is_rolling_out: bool = False
    activation_request_time: float | None = None
    is_suspended: bool = False
    scaling: Raw = field(default_factory=dict)
    """`spec.scaling` as it was written."""
    admin_tokens: tuple[str, ...] = field(default=(), repr=False)

    @property
    def askable_pods(self) -> tuple[PodView, ...]:
        """Give the pods that may answer: those that have an address and whose engine runs."""
        return tuple(pod for pod in self.pods if pod.ip and pod.phase == "Running")

    def settled_replicas(self, decided: int | None) -> int | None:
        """Give what there is to be, by the latest decision, while revisions stand beside each other."""
        if not self.has_other_revisions:
            return None
        followed_one = decided if self.policy.mode == "Auto" else None
        return followed(self.policy, self.held_replicas, followed_one, may_shrink=not self.is_rolling_out)

    @property
    def ready_pods(self) -> tuple[PodView, ...]:
        """Give the pods that are ready and stay."""
        return tuple(pod for pod in self.pods if pod.is_ready and not pod.is_terminating)


@dataclass(frozen=True, kw_only=True)
class KnownFigures:
    """The latest figures of one engine, and why there are no newer ones."""

    figures: EngineFigures | None = None
    missing_reason: str = "not asked yet"


@dataclass(frozen=True, kw_only=True)
class KnownDemand:
    """The latest word of one gateway about one service, and why there is no newer one."""

    started: float = 0.0
    demand: GatewayDemand | None = None
    missing_reason: str = "not asked yet"


def facts_of(
    service: Raw, spec: ServiceSpec, policy: ScalingPolicy, observed: Observed, admin_tokens: tuple[str, ...]
) -> ServiceFacts:
    """Gather the facts of a service that scales."""
    metadata = service["metadata"]
    status = service.get("status") or {}
    activation = status.get("activation") or {}
    asked = sum(deployment.asked_replicas for deployment in observed.deployments)
    held = held_replicas(policy, status, observed)
    return ServiceFacts(
        key=Key(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        policy=policy,
        pods=tuple(pod for pod in observed.pods if pod.phase not in FINISHED_PHASES),
        gateways=(*observed.gateways, *observed.leaving_gateways),
        current_replicas=asked if observed.deployments else held,
        held_replicas=held,
        has_other_revisions=has_other_revisions(spec, observed),
        is_rolling_out=is_rolling_out(spec, observed),
        activation_request_time=unix_time(activation.get("requestTime")),
        is_suspended=spec.suspend,
        scaling=(service.get("spec") or {}).get("scaling") or {},
        admin_tokens=admin_tokens,
    )


def fleet_load(
    facts: ServiceFacts,
    engines: Mapping[str, KnownFigures],
    gateways: Mapping[str, KnownDemand],
    *,
    has_been_ready: bool,
    at: float,
    decided: int | None = None,
) -> FleetLoad:
    """Put everything known of a service's load together; what is too old counts as missing.

    `decided` is what the plan was last told to follow.
    """
    stale_after = facts.policy.stale_after_seconds
    return FleetLoad(
        at=at,
        current_replicas=facts.current_replicas,
        replicas=tuple(
            _replica(pod, engines.get(pod.uid, KnownFigures()), at, stale_after) for pod in facts.pods
        ),
        gateways=tuple(
            _gateway(view, gateways.get(view.name, KnownDemand()), at, stale_after) for view in facts.gateways
        ),
        activation_request_time=facts.activation_request_time,
        settled_replicas=facts.settled_replicas(decided),
        has_been_ready=has_been_ready,
    )


def _replica(pod: PodView, known: KnownFigures, at: float, stale_after: float) -> ReplicaLoad:
    figures, reason = known.figures, known.missing_reason
    if figures is not None and at - figures.sampled_at > stale_after:
        reason = f"the latest figures are {at - figures.sampled_at:.0f} s old: {reason or 'no newer answer'}"
        figures = None
    return ReplicaLoad(
        uid=pod.uid,
        name=pod.name,
        created=unix_time(pod.created_at) or at,
        is_ready=pod.is_ready and not pod.is_terminating,
        is_draining=pod.is_terminating or not pod.is_routable,
        is_unschedulable=not pod.is_scheduled,
        ready_since=unix_time(pod.ready_changed_at) if pod.is_ready else None,
        figures=figures,
        missing_reason="" if figures is not None else reason,
    )


def _gateway(view: GatewayView, known: KnownDemand, at: float, stale_after: float) -> GatewayLoad:
    demand, reason = known.demand, known.missing_reason
    if demand is not None and at - demand.sampled_at > stale_after:
        reason = f"the latest word is {at - demand.sampled_at:.0f} s old: {reason or 'no newer answer'}"
        demand = None
    return GatewayLoad(
        name=view.name,
        started=known.started,
        demand=demand,
        missing_reason="" if demand is not None else reason,
    )
