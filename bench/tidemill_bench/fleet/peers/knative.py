"""Knative's pod autoscaler (KPA) on concurrency.

Source: knative.dev, "Additional autoscaling configuration for Knative Pod Autoscaler" and the config-
autoscaler defaults (Serving 1.18): desired = ceil(mean concurrency / target) over a stable window of 60 s,
and over a panic window of a tenth of it; panic begins where the latter wants at least twice the ready pods,
ends a stable window after the last such moment, and never shrinks meanwhile; at most half of the pods go at
once. The target is the concurrency that a user sets times the utilization (70 %); the knob is their
product.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from tidemill_bench.fleet.peers.observed import num_ongoing, num_ready

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import FleetLoad

PANIC_THRESHOLD = 2.0
MAX_SCALE_DOWN = 2.0


class Kpa:
    """One revision's autoscaler."""

    def __init__(self, target: float, stable_seconds: float) -> None:
        self._target, self._stable = target, stable_seconds
        self._panic = stable_seconds / 10
        self._samples: deque[tuple[float, int]] = deque()
        self._panic_since: float | None = None
        self._panic_pods = 0

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""
        now, ready = load.at, max(1, num_ready(load))
        self._samples.append((now, num_ongoing(load)))
        while self._samples[0][0] <= now - self._stable:
            self._samples.popleft()
        stable = self._wanted(self._stable, now)
        panic = self._wanted(self._panic, now)
        floor = math.floor(ready / MAX_SCALE_DOWN)
        stable, panic = max(floor, stable), max(floor, panic)
        is_over = panic >= PANIC_THRESHOLD * ready
        if is_over:
            self._panic_since = now
        elif self._panic_since is not None and now - self._panic_since >= self._stable:
            self._panic_since, self._panic_pods = None, 0
        if self._panic_since is None:
            return stable
        self._panic_pods = max(self._panic_pods, panic)
        return self._panic_pods

    def _wanted(self, window: float, now: float) -> int:
        values = [count for at, count in self._samples if at > now - window] or [self._samples[-1][1]]
        return math.ceil(sum(values) / len(values) / self._target)
