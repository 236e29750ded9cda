"""Replicas in every state that matters to their removal, and engines' loads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from operator_builders import make_pod
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.removal import COST_DRAINING

if TYPE_CHECKING:
    from tidemill_operator.observed import PodView

LONG_AGO = "2026-11-29T11:00:00Z"
JUST_NOW = "2026-11-29T11:59:58Z"


def serving(name: str, **changes: Any) -> PodView:
    """Build a replica that is ready."""
    return make_pod("aaaa", 0, name=name, uid=name, ip=f"ip-{name}", is_ready=True, **changes)


def starting(name: str, **changes: Any) -> PodView:
    """Build a replica that is not ready yet."""
    return replace(serving(name, **changes), is_ready=False)


def draining(name: str, since: str = JUST_NOW, **changes: Any) -> PodView:
    """Build a replica that was told to drain."""
    values = {"is_routable": False, "drain_started_at": since, "deletion_cost": COST_DRAINING, **changes}
    return replace(serving(name), **{"is_ready": False, **values})


def load(tokens: int = 0, cached: int = 0) -> EngineLoad:
    """Build the load of an engine that serves."""
    return EngineLoad(in_flight_tokens=tokens, in_flight_requests=tokens and 1, num_cached_blocks=cached)
