"""What the other autoscalers read from a load: plain sums over ready replicas with figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import EngineFigures, FleetLoad


def figures(load: FleetLoad) -> list[EngineFigures]:
    """Return the figures of ready replicas that serve."""
    return [r.figures for r in load.replicas if r.figures is not None and not r.is_draining]


def num_staying(load: FleetLoad) -> int:
    """Return the replicas that are asked for: ready or coming."""
    return sum(not r.is_draining for r in load.replicas)


def num_ready(load: FleetLoad) -> int:
    """Return the replicas that serve."""
    return sum(r.is_ready and not r.is_draining for r in load.replicas)


def num_held(load: FleetLoad) -> int:
    """Return the requests that wait in gateways."""
    return sum(g.demand.held_requests for g in load.gateways if g.demand is not None)


def num_ongoing(load: FleetLoad) -> int:
    """Return the requests that are anywhere: running, waiting or held."""
    return sum(f.num_running + f.num_waiting for f in figures(load)) + num_held(load)


def num_waiting(load: FleetLoad) -> int:
    """Return the requests that wait, in engines or gateways."""
    return sum(f.num_waiting for f in figures(load)) + num_held(load)


def kv_use(load: FleetLoad) -> float:
    """Return the KV caches in use, in replicas' worth."""
    return sum(f.kv_use for f in figures(load))
