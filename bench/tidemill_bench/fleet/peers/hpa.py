"""Kubernetes' HorizontalPodAutoscaler (autoscaling/v2) on one or more metrics with an AverageValue target.

Source: kubernetes.io, "Horizontal Pod Autoscaling", algorithm details and configurable scaling behavior
(v1.33): desired = ceil(sum / target), nothing within the tolerance of 10 %, every 15 s; the largest wish of
several metrics; scaleDown takes the highest wish of its window (300 s); scaleUp adds at most 100 % or 4
pods each 15 s. Pods that are not ready count as 0 in the sum. Left out: the delay of a metrics pipeline,
which would only hurt it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill_bench.fleet.peers.observed import kv_use, num_staying, num_waiting

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import FleetLoad

Metric = Callable[["FleetLoad"], float]
SYNC_SECONDS = 15.0
TOLERANCE = 0.1


@dataclass(frozen=True, kw_only=True)
class Pace:
    """`behavior`: the window downwards, and at most so many pods each so many seconds; 0 is no bound."""

    down_window_seconds: float = 300.0
    up_pods: int = 4
    up_percent: int = 100
    up_period_seconds: float = 15.0
    down_pods: int = 0
    down_period_seconds: float = 15.0


class Hpa:
    """One HPA."""

    def __init__(self, metrics: tuple[tuple[Metric, float], ...], pace: Pace) -> None:
        self._metrics, self._pace = metrics, pace
        self._wishes: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()
        self._last_sync = -math.inf

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""
        if load.at - self._last_sync < SYNC_SECONDS - 1e-6:
            return None
        self._last_sync = load.at
        current = num_staying(load)
        wish = max(self._wish(metric(load), target, current) for metric, target in self._metrics)
        self._wishes.append((load.at, wish))
        while self._wishes[0][0] < load.at - self._pace.down_window_seconds:
            self._wishes.popleft()
        if wish < current:
            wish = min(current, max(w for _, w in self._wishes))
        after = self._paced(load.at, current, wish)
        if after != current:
            self._changes.append((load.at, after - current))
        return after

    @staticmethod
    def _wish(total: float, target: float, current: int) -> int:
        if current and abs(total / target / current - 1.0) <= TOLERANCE:
            return current
        return max(1, math.ceil(total / target))

    def _paced(self, now: float, current: int, wish: int) -> int:
        pace = self._pace
        if wish > current:
            start = current - self._changed(now, pace.up_period_seconds, up=True)
            limits = [start + pace.up_pods, math.ceil(start * (1 + pace.up_percent / 100))]
            return max(current, min(wish, max(limits)))
        if wish < current and pace.down_pods:
            start = current - self._changed(now, pace.down_period_seconds, up=False)
            return min(current, max(wish, start - pace.down_pods))
        return wish

    def _changed(self, now: float, period: float, *, up: bool) -> int:
        return sum(c for at, c in self._changes if at > now - period and (c > 0) == up)


def on_kv_use(target: float, window: float) -> Hpa:
    """Scale on the mean KV-cache use of a replica."""
    return Hpa(((kv_use, target),), Pace(down_window_seconds=window))


def on_queue(target: float, window: float) -> Hpa:
    """Scale on the waiting requests of a replica."""
    return Hpa(((num_waiting, target),), Pace(down_window_seconds=window))
