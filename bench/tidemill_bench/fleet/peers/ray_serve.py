"""Ray Serve's default policy: ongoing requests per replica.

Source: docs.ray.io, "Advanced Ray Serve Autoscaling" and `AutoscalingConfig` (2.49): ongoing requests,
averaged over look_back_period_s (30), over target_ongoing_requests; more replicas after the wish has stood
for upscale_delay_s (30), fewer after downscale_delay_s (600). Both smoothing factors stay at 1.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from tidemill_bench.fleet.peers.observed import num_ongoing, num_staying

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import FleetLoad

LOOK_BACK_SECONDS = 30.0


class RayServe:
    """One deployment's autoscaler."""

    def __init__(self, target: float, up_delay: float, down_delay: float) -> None:
        self._target, self._up_delay, self._down_delay = target, up_delay, down_delay
        self._samples: deque[tuple[float, int]] = deque()
        self._direction = 0
        self._since = 0.0

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""
        now, current = load.at, num_staying(load)
        self._samples.append((now, num_ongoing(load)))
        while self._samples[0][0] <= now - LOOK_BACK_SECONDS:
            self._samples.popleft()
        mean = sum(count for _, count in self._samples) / len(self._samples)
        wanted = max(1, math.ceil(mean / self._target))
        direction = (wanted > current) - (wanted < current)
        if direction != self._direction:
            self._direction, self._since = direction, now
        delay = self._up_delay if direction > 0 else self._down_delay
        if direction == 0 or now - self._since < delay:
            return None
        self._since = now
        return wanted
