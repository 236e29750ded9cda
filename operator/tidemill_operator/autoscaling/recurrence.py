"""Bursts that come again and again: when the next one is due, and what the last one needed. Pure.

Knows times at which a queue grew too long. Two of them are taken for a rhythm until the third comes at
another time; from then on distances must be even. What the last bursts needed is there again when the next is
due, and goes when it did not come.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

EPISODE_SECONDS = 240.0
"""A queue that comes back within so long is the same."""
REMEMBERED_SECONDS = 7200.0
MOST_UNEVEN = 1.25
"""Distances are even if the longest is at most so many times the shortest."""
LEAST_SLACK_SECONDS, MOST_SLACK_SECONDS = 20.0, 45.0
"""How much earlier or later than expected the next may come: more while the rhythm is not known well."""


@dataclass(frozen=True, kw_only=True)
class Burst:
    """When a burst began and how many replicas it needed."""

    at: float
    replicas: int


Bursts = tuple[Burst, ...]


def noted(before: Bursts, now: float, wanted: int, *, is_over: bool) -> Bursts:
    """Note that a queue is too long, or what the burst under way needs; forget what is long gone."""
    kept = tuple(burst for burst in before if burst.at > now - REMEMBERED_SECONDS)
    if kept and now - kept[-1].at < EPISODE_SECONDS:
        last = kept[-1]
        return (*kept[:-1], Burst(at=last.at, replicas=max(last.replicas, wanted)))
    return (*kept, Burst(at=now, replicas=wanted)) if is_over else kept


def due(bursts: Bursts, now: float, ahead_seconds: float) -> Burst | None:
    """Return the burst that is expected within so many seconds; None where there is no rhythm.

    `at` is the earliest moment at which it is expected.
    """
    times = [burst.at for burst in bursts[-4:]]
    if len(times) < 2:
        return None
    gaps = [b - a for a, b in pairwise(times)]
    if max(gaps) > MOST_UNEVEN * min(gaps):
        return None
    slack = MOST_SLACK_SECONDS
    if len(gaps) > 1:
        slack = min(slack, max(LEAST_SLACK_SECONDS, max(gaps) - min(gaps)))
    first, last = times[-1] + min(gaps) - slack, times[-1] + max(gaps) + slack
    if not first - ahead_seconds <= now <= last:
        return None
    return Burst(at=first, replicas=min(burst.replicas for burst in bursts[-2:]))
