"""How many replicas carry a load, and how many more work off what waits. Pure arithmetic.

A larger fleet may be fuller: its replicas take each other's random peaks, so what it needs beyond the mean
grows with the square root of its size (square-root staffing, Halfin and Whitt 1981). `one` is the share of
its capacity up to which a single replica may be used.
"""

from __future__ import annotations

import math

LATE_PRICE = 4.0
"""A request in time is worth the time in which one replica serves so many."""


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


def replicas_to_catch_up(backlog_seconds: float, full: float, hold_seconds: float) -> float:
    """Return how many replicas should do nothing but work off a backlog, in seconds of one replica.

    n of them, each paid for `hold_seconds` beside its work, take backlog / n seconds, in which all that
    arrives is late: the n with the least sum of both, a late request counted at LATE_PRICE.
    """
    if backlog_seconds <= 0 or full <= 0:
        return 0.0
    return math.sqrt(LATE_PRICE * backlog_seconds * full / hold_seconds)
