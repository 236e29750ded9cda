"""How many replicas a service should have now, all its revisions together.

Pure. Knows who decides: suspension, then spec.replicas, then the autoscaler. Refuses to know what the
autoscaler looked at, and how replicas are split between revisions.
"""

from collections.abc import Mapping
from typing import Any

from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.observed import Observed
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.spec import ServiceSpec

Raw = Mapping[str, Any]


def desired_replicas(spec: ServiceSpec, status: Raw, observed: Observed, scaling: ScalingView | None) -> int:
    """Give the number of replicas that should exist."""
    if spec.suspend:
        return 0
    if spec.replicas is not None:
        return spec.replicas
    if spec.scaling is None:
        return 0
    held = held_replicas(spec.scaling, status, observed)
    decided = None if scaling is None else scaling.desired
    return followed(spec.scaling, held, decided, may_shrink=not is_rolling_out(spec, observed))


def followed(bounds: ScalingPolicy, held: int, decided: int | None, *, may_shrink: bool) -> int:
    """Give what becomes of a decision: without one the number is held, and in a rollout it does not fall."""
    wanted = held if decided is None or (decided < held and not may_shrink) else decided
    return min(bounds.max_replicas, max(bounds.min_replicas, wanted))


def held_replicas(bounds: ScalingPolicy, status: Raw, observed: Observed) -> int:
    """Give the number to stay at: the last one decided, else what the Deployments were last given.

    A new service begins with a replica even where it may go to zero: nothing is known of it before it was
    ready once.
    """
    told = status.get("desiredReplicas")
    if isinstance(told, int):
        return told
    if not observed.deployments:
        return max(1, bounds.min_replicas)
    return sum(deployment.asked_replicas for deployment in observed.deployments)


def is_rolling_out(spec: ServiceSpec, observed: Observed) -> bool:
    """Tell whether a new revision is taking over: then nothing is taken away. A canary may last for days."""
    return spec.rollout.canary is None and has_other_revisions(spec, observed)


def has_other_revisions(spec: ServiceSpec, observed: Observed) -> bool:
    """Tell whether another revision than the newest has replicas: there are more, or fewer, than desired."""
    others = (d for d in observed.deployments if d.revision != spec.target_revision)
    return any(deployment.asked_replicas > 0 for deployment in others)
