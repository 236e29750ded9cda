"""Who counts: the replicas of a load by what is known of them, and the sums over those that are.

Draining replicas are neither capacity nor coming; those that start or wait for a node are coming. Figures
that are missing or older than `staleAfter` are unknown, which is not zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill_operator.autoscaling.model import EngineFigures, FleetLoad, ReplicaLoad
from tidemill_operator.autoscaling.policy import ScalingPolicy


@dataclass(frozen=True, kw_only=True)
class FleetView:
    """The load, sorted."""

    ready: tuple[ReplicaLoad, ...]
    coming: tuple[ReplicaLoad, ...]
    draining: tuple[ReplicaLoad, ...]
    known: tuple[EngineFigures, ...]
    """Fresh figures of ready replicas."""
    num_unknown: int
    missing: str
    """What is said of those without figures."""
    held_requests: int
    held_prompt_tokens: int
    in_flight_requests: int
    last_request_time: float | None
    is_every_gateway_known: bool
    num_settled: int | None = None
    """How many replicas there are to be but for a rollout or a canary; None where there is neither."""

    @property
    def num_staying(self) -> int:
        """Return the replicas that are not on their way out, nor there for a rollout or a canary alone."""
        num = len(self.ready) + len(self.coming)
        return num if self.num_settled is None else min(num, self.num_settled)

    @property
    def num_coming(self) -> int:
        """Return how many replicas more there will be than are ready now."""
        return max(0, self.num_staying - len(self.ready))

    @property
    def num_waiting(self) -> int:
        """Return the requests that wait in known replicas."""
        return sum(figures.num_waiting for figures in self.known)

    @property
    def num_running(self) -> int:
        """Return the requests that run in known replicas."""
        return sum(figures.num_running for figures in self.known)

    @property
    def kv_use(self) -> float:
        """Return the KV caches in use, in replicas' worth."""
        return sum(figures.kv_use for figures in self.known)

    @property
    def waiting_prompt_tokens(self) -> float:
        """Return prompt tokens that known replicas have still to compute."""
        return sum(figures.waiting_prompt_tokens or 0 for figures in self.known)

    @property
    def is_mostly_unknown(self) -> bool:
        """Say whether more than half of the ready replicas are without figures."""
        return self.num_unknown * 2 > len(self.ready)


def is_fresh(replica: ReplicaLoad, at: float, stale_after_seconds: float) -> bool:
    """Say whether a replica's figures can be used."""
    figures = replica.figures
    if figures is None or at - figures.sampled_at > stale_after_seconds:
        return False
    return all(math.isfinite(x) for x in (figures.kv_use, figures.num_running, figures.num_waiting))


def view(load: FleetLoad, policy: ScalingPolicy) -> FleetView:
    """Sort a load."""
    ready = tuple(r for r in load.replicas if r.is_ready and not r.is_draining)
    fresh = [r for r in ready if is_fresh(r, load.at, policy.stale_after_seconds)]
    unknown = [r for r in ready if r not in fresh]
    demands = [
        g.demand
        for g in load.gateways
        if g.demand is not None and load.at - g.demand.sampled_at <= policy.stale_after_seconds
    ]
    times = [d.last_request_time for d in demands if d.last_request_time is not None]
    return FleetView(
        ready=ready,
        coming=tuple(r for r in load.replicas if r.is_starting),
        draining=tuple(r for r in load.replicas if r.is_draining),
        known=tuple(r.figures for r in fresh if r.figures is not None),
        num_unknown=len(unknown),
        missing="; ".join(
            f"{r.name}: {r.missing_reason or ('stale' if r.figures is not None else 'no figures')}"
            for r in unknown[:3]
        ),
        held_requests=sum(d.held_requests for d in demands),
        held_prompt_tokens=sum(d.held_prompt_tokens for d in demands),
        in_flight_requests=sum(d.in_flight_requests for d in demands),
        last_request_time=max(times, default=None),
        is_every_gateway_known=bool(load.gateways) and len(demands) == len(load.gateways),
        num_settled=load.settled_replicas,
    )


def current_replicas(load: FleetLoad, view: FleetView) -> int:
    """Return the number that a decision changes or keeps.

    What a rollout or a canary adds for a while is none of it: kept as if it were, it would be added to again.
    """
    if view.num_settled is not None:
        return view.num_settled
    return max(view.num_staying, load.current_replicas - len(view.draining))
