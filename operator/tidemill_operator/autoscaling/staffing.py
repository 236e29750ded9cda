"""How many replicas carry a load, and how many more work off what waits. Pure arithmetic.

A larger fleet may be fuller: its replicas take each other's random peaks, so what it needs beyond the mean
grows with the square root of its size (square-root staffing, Halfin and Whitt 1981). `one` is the share of
its capacity up to which a single replica may be used.
"""

from __future__ import annotations

import math
from statistics import NormalDist

LATE_PRICE = 2.0
"""A request in time is worth the time in which one replica serves so many, where 5 % may be late."""
SPARE = 0.30
"""What a single replica leaves free at first, where 5 % of the requests may be late."""
COMMON_PERCENTILE = 95


def first_utilization(percentile: int) -> float:
    """Return how full a single replica may be until more is learned: less where fewer may be late.

    What is spare grows with the standard errors of chance that the percentile stands for.
    """
    errors, common = (NormalDist().inv_cdf(p / 100) for p in (min(99.9, percentile), COMMON_PERCENTILE))
    return min(0.9, max(0.4, 1.0 - SPARE * errors / common))


def late_price(percentile: int) -> float:
    """Return what a request in time is worth, in requests that a replica serves meanwhile."""
    return LATE_PRICE * (100 - COMMON_PERCENTILE) / max(0.1, 100 - percentile)


def allowed_share(one: float, num_replicas: int) -> float:
    """Return the share of its capacity up to which a fleet of that size may be used."""
    return 1.0 - (1.0 - one) / math.sqrt(max(1, num_replicas))


def replicas_for(full: float, one: float) -> int:
    """Return how many replicas carry what `full` of them would be filled by to the brim."""
    if full <= 0:
        return 0
    spare = 1.0 - one
    root = (spare + math.sqrt(spare * spare + 4.0 * full)) / 2.0
    return math.ceil(root * root - 1e-6)


def replicas_to_catch_up(
    backlog_seconds: float, full: float, hold_seconds: float, price: float = LATE_PRICE
) -> float:
    """Return how many replicas should do nothing but work off a backlog, in seconds of one replica.

    n of them, each paid for `hold_seconds` beside its work, take backlog / n seconds, in which all that
    arrives is late: the n with the least sum of both, a late request counted at its price.
    """
    if backlog_seconds <= 0 or full <= 0:
        return 0.0
    return math.sqrt(price * backlog_seconds * full / hold_seconds)
