"""KubeAI's autoscaler: a moving average of active requests.

Source: kubeai.org, "Configure autoscaling", and its Helm values (0.22): every 10 s, ceil(mean of the active
requests over a time window of 10 min / targetRequests); fewer only after as many wishes in a row as fit
into scaleDownDelaySeconds (30). The average begins with zeros.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from tidemill_bench.fleet.peers.observed import num_ongoing, num_staying

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import FleetLoad

INTERVAL_SECONDS = 10.0
SCALE_DOWN_DELAY_SECONDS = 30.0


class KubeAi:
    """One model's autoscaler."""

    def __init__(self, target_requests: float, window_seconds: float) -> None:
        self._target = target_requests
        count = max(1, int(window_seconds / INTERVAL_SECONDS))
        self._history: deque[int] = deque([0] * count, maxlen=count)
        self._last = -math.inf
        self._num_lower = 0

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""
        if load.at - self._last < INTERVAL_SECONDS - 1e-6:
            return None
        self._last = load.at
        self._history.append(num_ongoing(load))
        wanted = math.ceil(sum(self._history) / len(self._history) / self._target)
        if wanted >= num_staying(load):
            self._num_lower = 0
            return wanted
        self._num_lower += 1
        if self._num_lower < math.ceil(SCALE_DOWN_DELAY_SECONDS / INTERVAL_SECONDS):
            return None
        self._num_lower = 0
        return wanted
