"""Pods of a simulated fleet: start, serve, drain, end. Knows when each did; not who decides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill_operator.autoscaling.model import ReplicaLoad

if TYPE_CHECKING:
    from tidemill_bench.fleet.replica import Engine


@dataclass(kw_only=True)
class Pod:
    """One replica's pod; it costs from `created` until `ended`."""

    number: int
    created: float
    ready_at: float
    engine: Engine | None = None
    draining_since: float | None = None
    ended: float = math.inf

    @property
    def is_ready(self) -> bool:
        """Say whether its engine serves."""
        return self.engine is not None

    @property
    def is_draining(self) -> bool:
        """Say whether it is on its way out."""
        return self.draining_since is not None

    @property
    def num_in_flight(self) -> int:
        """Return how many requests its engine has."""
        return self.engine.num_in_flight if self.engine is not None else 0

    def load(self, now: float, *, is_scraped: bool) -> ReplicaLoad:
        """Return what the autoscaler sees of it."""
        figures = self.engine.figures(now) if self.engine is not None and is_scraped else None
        return ReplicaLoad(
            uid=f"pod-{self.number}",
            name=f"pod-{self.number}",
            created=self.created,
            is_ready=self.is_ready,
            is_draining=self.is_draining,
            ready_since=self.ready_at if self.is_ready else None,
            figures=figures,
            missing_reason="" if is_scraped else "the scrape timed out",
        )


@dataclass(kw_only=True)
class PodSet:
    """All pods that ever were; those that have not ended are alive."""

    alive: list[Pod] = field(default_factory=list)
    gone: list[Pod] = field(default_factory=list)

    def serving(self) -> list[Pod]:
        """Return the ready pods that take new requests."""
        return [pod for pod in self.alive if pod.engine is not None and pod.draining_since is None]

    def engines(self) -> list[Engine]:
        """Return every engine that works."""
        return [pod.engine for pod in self.alive if pod.engine is not None]

    def staying(self) -> list[Pod]:
        """Return the pods that are not on their way out."""
        return [pod for pod in self.alive if pod.draining_since is None]

    def draining(self) -> list[Pod]:
        """Return the pods on their way out, the latest first."""
        leaving = [pod for pod in self.alive if pod.draining_since is not None]
        return sorted(leaving, key=lambda pod: (pod.draining_since or 0.0, pod.number), reverse=True)

    def end(self, pod: Pod, now: float) -> None:
        """Let a pod go."""
        pod.ended = now
        self.alive.remove(pod)
        self.gone.append(pod)

    def replica_hours(self, since: float, until: float) -> float:
        """Return the hours that pods existed between two times."""
        pods = [*self.alive, *self.gone]
        return sum(max(0.0, min(pod.ended, until) - max(pod.created, since)) for pod in pods) / 3600.0
