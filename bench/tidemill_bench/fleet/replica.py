"""What the fleet needs of a replica, whatever is inside, and the counters that both kinds keep."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

from tidemill_operator.autoscaling.model import EngineFigures, Histogram

if TYPE_CHECKING:
    from tidemill_bench.fleet.requests import FleetRequest

BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, math.inf)
"""Upper bounds of the latency histograms' buckets, seconds."""


class Latencies:
    """A histogram that grows."""

    def __init__(self) -> None:
        self._counts = [0.0] * len(BOUNDS)

    def add(self, seconds: float, count: float = 1.0) -> None:
        """Count an observation, or several alike."""
        self._counts[bisect_left(BOUNDS, seconds)] += count

    def histogram(self) -> Histogram:
        """Return it as it is exposed."""
        total, cumulative = 0.0, []
        for count in self._counts:
            total += count
            cumulative.append(total)
        return Histogram(upper_bounds_seconds=BOUNDS, cumulative_counts=tuple(cumulative))


class Engine(Protocol):
    """The inside of a replica that is ready: takes requests and lets time pass."""

    @property
    def num_in_flight(self) -> int:
        """Return how many requests it has, waiting or running."""

    def add(self, request: FleetRequest, now: float) -> None:
        """Take a request; the engine has been advanced to `now`."""

    def advance(self, until: float) -> None:
        """Carry out every step that begins before `until`."""

    def take_unstarted(self) -> list[FleetRequest]:
        """Give back the requests of which no client has seen a token and nothing runs: they go elsewhere."""

    def take_all(self) -> list[FleetRequest]:
        """Give back everything: the process has died."""

    def figures(self, now: float) -> EngineFigures:
        """Return what it reports of itself."""
