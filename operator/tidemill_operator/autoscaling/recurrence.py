"""Bursts that come again and again: when the next one is due, and what the last one needed. Pure.

Knows times at which a queue grew too long; such a burst is past when much less is wanted again. Two of them
are taken for a rhythm until the third comes at another time; from then on distances must be even. What the
last bursts needed is there again when the next is due, and goes when it did not come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

EPISODE_SECONDS = 240.0
"""A queue that comes back within so long is the same."""
PAST_SHARE = 2 / 3
"""A burst is past when no more than so much of what it needed is wanted."""
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
    is_past: bool = False


Bursts = tuple[Burst, ...]


def noted(before: Bursts, now: float, wanted: int, *, is_over: bool) -> Bursts:
    """Note that a queue is too long, or what the burst under way needs; forget what is long gone."""
    kept = tuple(burst for burst in before if burst.at > now - REMEMBERED_SECONDS)
    if kept and not kept[-1].is_past:
        last = kept[-1]
        is_past = wanted <= PAST_SHARE * last.replicas
        return (*kept[:-1], replace(last, replicas=max(last.replicas, wanted), is_past=is_past))
    if not is_over or (kept and now - kept[-1].at < EPISODE_SECONDS):
        return kept
    return (*kept, Burst(at=now, replicas=wanted))


def due(bursts: Bursts, now: float, ahead_seconds: float) -> Burst | None:
    """Return the burst that is expected within so many seconds; None where there is no rhythm.

    `at` is the earliest moment at which it is expected.
    """
    times = [burst.at for burst in bursts[-4:]]
    if len(times) < 2 or not bursts[-1].is_past:
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
