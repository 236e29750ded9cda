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
    if scaling is None or scaling.desired is None:
        return _within(spec.scaling, held)
    if scaling.desired < held and _is_rolling_out(spec, observed):
        return _within(spec.scaling, held)
    return _within(spec.scaling, scaling.desired)


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


def _is_rolling_out(spec: ServiceSpec, observed: Observed) -> bool:
    """Tell whether a new revision is taking over: then nothing is taken away. A canary may last for days."""
    others = [d for d in observed.deployments if d.revision != spec.target_revision]
    return spec.rollout.canary is None and any(d.asked_replicas > 0 for d in others)


def _within(bounds: ScalingPolicy, wanted: int) -> int:
    return min(bounds.max_replicas, max(bounds.min_replicas, wanted))
