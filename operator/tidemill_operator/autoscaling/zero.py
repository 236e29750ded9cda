"""To zero and back: when a service is idle, and when it is wanted again. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill_operator.autoscaling.fleet_view import FleetView
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.autoscaling.policy import ScalingPolicy


@dataclass(frozen=True, kw_only=True)
class Idleness:
    """Whether the service may go to zero, and since when nothing was asked of it."""

    may_go: bool
    message: str
    seconds_left: float = 0.0


def wake(
    load: FleetLoad, view: FleetView, policy: ScalingPolicy, concurrency: float, at_zero_since: float | None
) -> int:
    """Return how many replicas a service at zero needs; 0: nobody has asked since it went there."""
    asked = load.activation_request_time
    timeout = policy.scale_to_zero.activation_timeout_seconds if policy.scale_to_zero else 0.0
    is_new = asked is not None and (at_zero_since is None or asked > at_zero_since)
    is_asked = is_new and asked is not None and load.at - asked <= timeout
    if view.held_requests == 0 and not is_asked:
        return 0
    return min(policy.max_replicas, max(1, math.ceil(view.held_requests / max(1.0, concurrency))))


def idleness(load: FleetLoad, view: FleetView, policy: ScalingPolicy, last_request: float | None) -> Idleness:
    """Say whether nothing has arrived or been in flight anywhere for `idleAfter`."""
    if policy.scale_to_zero is None:
        return Idleness(may_go=False, message="")
    if not load.has_been_ready:
        return Idleness(may_go=False, message="no replica was ever ready")
    if not view.is_every_gateway_known:
        return Idleness(may_go=False, message="a gateway did not answer, and a silent one is not an idle one")
    if is_busy(view):
        return Idleness(may_go=False, message="requests are in flight")
    idle_after = policy.scale_to_zero.idle_after_seconds
    since = load.at - last_request if last_request is not None else 0.0
    if since < idle_after:
        left = idle_after - since
        return Idleness(
            may_go=False, message=f"idle for {since:.0f} s of {idle_after:.0f}", seconds_left=left
        )
    return Idleness(may_go=True, message=f"no request for {since:.0f} s, idleAfter is {idle_after:.0f} s")


def is_busy(view: FleetView) -> bool:
    """Say whether a request is anywhere."""
    return bool(view.held_requests or view.in_flight_requests or view.num_waiting or view.num_running)


def last_request_time(before: float | None, load: FleetLoad, view: FleetView) -> float | None:
    """Return when a request was last known; where nobody knows, idleness counts from now."""
    if is_busy(view):
        return load.at
    known = [t for t in (before, view.last_request_time, load.activation_request_time) if t is not None]
    return min(load.at, max(known)) if known else load.at
