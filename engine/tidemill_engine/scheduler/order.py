"""In which order waiting requests are admitted: a constant rank for each, least first.

Knows arrival, priority class, SLO and estimates that others give. Does not know tenants, queues or blocks.
The key of a rank is made once, when the request arrives; only a hopeless request's band changes later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidemill_engine.config import OrderConfig
    from tidemill_engine.request import Request

ARRIVAL_WEIGHT = 0.1
"""Seconds of predicted work that a second of waiting makes up for under `sjf`."""
IMPROVEMENT = 0.2
"""Share of its TTFT SLO by which a hopeless request's prediction must fall to be hopeful again."""

ON_TIME = 0
HOPELESS = 1


class Rank(NamedTuple):
    """A request's place: compared field by field, least first; `order` makes every rank unique."""

    priority_class: int
    is_fresh: int
    """0 for a preempted request, which so goes first in its class; 1 otherwise."""
    band: int
    key: float
    arrival_time: float
    order: int


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """Seconds that a request is predicted to take: its prefill alone, and all of it."""

    prefill_seconds: Callable[[Request], float]
    total_seconds: Callable[[Request], float]


class OrderPolicy:
    """Makes ranks by one of the policies: `fifo`, `sjf`, `priority`, `slo`."""

    def __init__(self, config: OrderConfig, estimates: Estimates) -> None:
        self.name = config.policy
        self._default_slo = config.default_ttft_slo_seconds
        self._estimates = estimates

    @property
    def has_deadlines(self) -> bool:
        """Say whether a key is a time after which the request is hopeless."""
        return self.name == "slo"

    def rank(self, request: Request) -> Rank:
        """Return a new request's rank."""
        return Rank(
            priority_class=0 if self.name == "fifo" else request.priority,
            is_fresh=1,
            band=ON_TIME,
            key=self._key(request),
            arrival_time=request.arrival_time,
            order=request.order,
        )

    def hopeful_rank(self, request: Request, rank: Rank, now: float) -> Rank | None:
        """Return the rank of a hopeless request whose prediction improved enough to be in time; else None."""
        key = self._key(request)
        has_improved = key - rank.key >= IMPROVEMENT * self._slo(request)
        return rank._replace(band=ON_TIME, key=key) if has_improved and key > now else None

    def _key(self, request: Request) -> float:
        """Return the key in seconds; under `slo` the latest moment to start, so the most urgent is least."""
        if self.name == "sjf":
            predicted = self._estimates.total_seconds(request)
            return predicted + ARRIVAL_WEIGHT * request.arrival_time
        if self.name == "slo":
            deadline = request.arrival_time + self._slo(request)
            return deadline - self._estimates.prefill_seconds(request)
        return request.arrival_time

    def _slo(self, request: Request) -> float:
        """Return a request's TTFT SLO in seconds."""
        given = request.ttft_slo_seconds
        return self._default_slo if given is None else given


def preempted(rank: Rank) -> Rank:
    """Return the rank of a request that has been running: the same key, first in its class."""
    return rank._replace(is_fresh=0)
