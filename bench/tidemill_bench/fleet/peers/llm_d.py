"""llm-d's saturation analyser (Workload Variant Autoscaler, the percentage-based V1).

Source: llm-d-workload-variant-autoscaler, docs/saturation-analyzer.md and deploy/configmap-saturation-
scaling.yaml (v0.7): a replica is saturated at KV use >= 0.80 or a queue >= 5, both the highest of a minute;
one more replica where the mean spare KV of the others is below 0.1 or their mean spare queue below 3; one
fewer where, with the load on one replica less, both stay at or above these. No replica is added while one
is starting. Every 30 s.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill_bench.fleet.peers.observed import num_ready, num_staying

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import FleetLoad

INTERVAL_SECONDS, PEAK_SECONDS = 30.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The config map's fields."""

    kv: float = 0.8
    queue: float = 5.0
    kv_spare: float = 0.1
    queue_spare: float = 3.0


class SaturationAnalyser:
    """One variant of one model."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._peaks: dict[str, deque[tuple[float, float, float]]] = {}
        self._last = -math.inf

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""
        replicas = self._replicas(load)
        if load.at - self._last < INTERVAL_SECONDS - 1e-6:
            return None
        self._last = load.at
        t, current, ready = self._thresholds, num_staying(load), num_ready(load)
        if not replicas:
            return None
        free = [(kv, queue) for kv, queue in replicas if kv < t.kv and queue < t.queue]
        spare_kv = sum(t.kv - kv for kv, _ in free) / len(free) if free else 0.0
        spare_queue = sum(t.queue - queue for _, queue in free) / len(free) if free else 0.0
        if spare_kv < t.kv_spare or spare_queue < t.queue_spare:
            return current + 1 if current == ready else None
        rest = len(free) - 1
        if rest < 1 or len(free) < len(replicas):
            return None
        kv_after = t.kv - sum(kv for kv, _ in free) / rest
        queue_after = t.queue - sum(queue for _, queue in free) / rest
        return current - 1 if kv_after >= t.kv_spare and queue_after >= t.queue_spare else None

    def _replicas(self, load: FleetLoad) -> list[tuple[float, float]]:
        """Return (KV use, queue) of each serving replica, the highest of the last minute."""
        alive = {}
        for replica in load.replicas:
            if replica.is_draining:
                continue
            peaks = self._peaks.get(replica.uid, deque())
            if replica.figures is not None:
                peaks.append((load.at, replica.figures.kv_use, float(replica.figures.num_waiting)))
            while peaks and peaks[0][0] <= load.at - PEAK_SECONDS:
                peaks.popleft()
            alive[replica.uid] = peaks
        self._peaks = alive
        return [(max(p[1] for p in peaks), max(p[2] for p in peaks)) for peaks in alive.values() if peaks]
