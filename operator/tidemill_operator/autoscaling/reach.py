"""Which prompts can't have their first token in time however many replicas there are. Pure.

A replica computes a prompt by itself in so many seconds; more replicas only spare it the wait. From the mean
and the spread of prompts' lengths follows the share whose own time is longer than what is promised. Once that
is more than the objective's percentile lets be late, the promise can't be kept, and what it asks of a fleet
fades out: from then on throughput decides.
"""

from __future__ import annotations

import math
from statistics import NormalDist

FADES_OVER = 4.0
"""Where so many times the prompts that may be late are out of reach, the promise asks for nothing more."""
LEAST_ALLOWED = 0.005


def share_out_of_reach(mean_seconds: float, spread: float | None, promised_seconds: float) -> float | None:
    """Return the share of prompts that take longer than that by themselves; None where nobody can say.

    `spread` is the standard deviation over the mean; lengths are taken to be log-normal.
    """
    if spread is None:
        return None
    if mean_seconds <= 0 or promised_seconds <= 0:
        return 0.0
    variance = math.log1p(spread * spread)
    if variance < 1e-9:
        return float(mean_seconds > promised_seconds)
    median = mean_seconds * math.exp(-variance / 2)
    return 1.0 - NormalDist().cdf(math.log(promised_seconds / median) / math.sqrt(variance))


def lost(share: float | None, percentile: int) -> float:
    """Return how far a promise is lost, 0 to 1, when so many prompts are out of its reach; 0 if unknown."""
    if share is None:
        return 0.0
    allowed = max(LEAST_ALLOWED, 1.0 - percentile / 100)
    return min(1.0, max(0.0, (share / allowed - 1.0) / (FADES_OVER - 1.0)))
