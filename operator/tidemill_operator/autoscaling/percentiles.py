"""Percentiles of latencies from buckets that many engines filled. Abstains where too little was observed."""

from __future__ import annotations

import math

from tidemill_operator.autoscaling.memory import LatencyWindow

MIN_SAMPLES = 50


def percentile(window: LatencyWindow | None, percent: float) -> float | None:
    """Return the latency, seconds, that so many percent stay within; None where nobody can say.

    Within a bucket the observations are taken to lie evenly; in the last one, which has no end, its start.
    """
    total = sum(window.counts) if window is not None else 0.0
    if window is None or total < MIN_SAMPLES:
        return None
    wanted, below, low = total * percent / 100, 0.0, 0.0
    for high, inside in zip(window.upper_bounds_seconds, window.counts, strict=True):
        if below + inside >= wanted and inside > 0:
            return low if math.isinf(high) else low + (high - low) * (wanted - below) / inside
        below, low = below + inside, high
    return low


def share_within(window: LatencyWindow | None, seconds: float) -> float | None:
    """Return the share of observations within so long; None where nobody can say."""
    total = sum(window.counts) if window is not None else 0.0
    if window is None or total < MIN_SAMPLES:
        return None
    good, low = 0.0, 0.0
    for high, inside in zip(window.upper_bounds_seconds, window.counts, strict=True):
        if high <= seconds:
            good += inside
        elif low < seconds and not math.isinf(high):
            good += inside * (seconds - low) / (high - low)
        low = high
    return good / total
