"""How many requests a service may have in flight, and how many may wait for it, at this gateway.

Pure. Knows replicas, limits and that all ready gateways share them evenly. Refuses to know who waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill_gateway.objects import Pod, Service


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How many requests may wait at this gateway, and how many of them may be one tenant's."""

    max_requests: int
    max_per_tenant: int


def able(replicas: Sequence[Pod]) -> tuple[Pod, ...]:
    """Give the replicas that take requests."""
    return tuple(pod for pod in replicas if pod.takes_requests)


def share_of(total: int, num_gateways: int) -> int:
    """Give this gateway's share of a limit for all: rounded up, so that nobody's share is nothing."""
    return -(-total // max(num_gateways, 1))


def has_place(service: Service, replicas: Sequence[Pod], num_in_flight: int, num_gateways: int) -> bool:
    """Say whether one more request may go to the replicas now."""
    num_able = sum(pod.takes_requests for pod in replicas)
    most = service.routing.max_in_flight_per_replica
    if most is None:
        return num_able > 0
    return num_in_flight < share_of(most * num_able, num_gateways) and num_able > 0


def hold_bounds(service: Service, default: int, num_gateways: int) -> Bounds:
    """Give the bounds on waiting; where tenants are known, none may fill more than half of the places."""
    total = service.waking.max_buffered_requests if service.waking is not None else default
    most = share_of(total, num_gateways)
    return Bounds(max_requests=most, max_per_tenant=share_of(most, 2) if service.routing.needs_key else most)
