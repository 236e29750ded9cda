"""What a decision means for the conditions of a service: what is known, whether it acts, what limits it."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill_operator.autoscaling.decision import Clamp, Finding
from tidemill_operator.autoscaling.fleet_view import FleetView
from tidemill_operator.autoscaling.policy import ScalingPolicy


@dataclass(frozen=True, kw_only=True)
class Said:
    """What the decision says of itself; `hold` is empty where it may act."""

    hold: str
    message: str
    clamps: tuple[Clamp, ...]


def findings_of(view: FleetView, policy: ScalingPolicy, said: Said, current: int) -> tuple[Finding, ...]:
    """Say in conditions' terms what is known, and what stands in the way."""
    if view.num_unknown:
        status, reason = ("False", "MetricsMissing") if said.hold else ("True", "SomeMissing")
        text = f"{view.num_unknown} of {len(view.ready)} ready replicas give no figures ({view.missing})"
    elif view.ready and not view.known:
        status, reason, text = "False", "MetricsMissing", "no figures"
    elif said.hold:
        status, reason, text = "False", "MetricsMissing", said.hold
    else:
        status, reason = "True", "Available"
        text = f"{len(view.known)} of {len(view.ready)} ready replicas give figures"
    metrics = Finding(
        condition="MetricsAvailable",
        status="False" if status == "False" else "True",
        reason=reason,
        message=text,
    )
    limiting = [c for c in said.clamps if c.name in {"Maximum", "Minimum", "ScaleUpPace", "ScaleDownPace"}]
    limited = Finding(
        condition="ScalingLimited",
        status="True" if limiting else "False",
        reason=limiting[-1].name if limiting else "WithinLimits",
        message=limiting[-1].message if limiting else f"{current} replicas are within all limits",
    )
    is_active = not said.hold
    active_finding = Finding(
        condition="ScalingActive",
        status="True" if is_active else "False",
        reason=("Advisory" if policy.mode == "Advisory" else "Deciding") if is_active else "MetricsMissing",
        message=said.message,
    )
    return metrics, limited, active_finding
