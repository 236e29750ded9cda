"""Figures of runs side by side: who is on the Pareto front, and what equal attainment costs whom. Pure.

Attainment is better higher, GPU-hours lower. A policy's curve is made of all its settings on one load: points
that another of its own points beats are left out, and between the rest it may be mixed, so lines join them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SAME_ATTAINMENT = 0.0005
SAME_HOURS = 0.0005


@dataclass(frozen=True, kw_only=True)
class Point:
    """One policy with one setting on one load."""

    policy: str
    knobs: str
    load: str
    attainment: float
    gpu_hours: float
    scale_events: int
    largest_queue: int
    num_failed: int = 0

    def beats(self, other: Point) -> bool:
        """Say whether it is at least as good in both and better in one."""
        better = self.attainment - other.attainment
        cheaper = other.gpu_hours - self.gpu_hours
        if better < -SAME_ATTAINMENT or cheaper < -SAME_HOURS:
            return False
        return better > SAME_ATTAINMENT or cheaper > SAME_HOURS


def is_on_front(point: Point, others: Iterable[Point]) -> bool:
    """Say whether none of the others beats it."""
    return not any(other.beats(point) for other in others)


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats, the cheapest first."""
    kept = [p for p in points if is_on_front(p, points)]
    return sorted(kept, key=lambda p: (p.gpu_hours, p.attainment))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a curve needs for an attainment; `is_reached` is false where it never gets there.

    Then the hours are those of its best point: less than it would need, if it could at all.
    """

    gpu_hours: float
    is_reached: bool


def hours_for(attainment: float, curve: Sequence[Point]) -> Cost:
    """Return the GPU-hours at which a curve attains as much, by lines between its points."""
    best = front(curve)
    if attainment <= best[0].attainment:
        return Cost(gpu_hours=best[0].gpu_hours, is_reached=True)
    for low, high in pairwise(best):
        if low.attainment < attainment <= high.attainment:
            share = (attainment - low.attainment) / (high.attainment - low.attainment)
            hours = low.gpu_hours + share * (high.gpu_hours - low.gpu_hours)
            return Cost(gpu_hours=hours, is_reached=True)
    is_same = attainment <= best[-1].attainment + SAME_ATTAINMENT
    return Cost(gpu_hours=best[-1].gpu_hours, is_reached=is_same)


def tuned(points: Sequence[Point], wanted: float) -> str:
    """Return the knobs that a user would choose: the cheapest that attain as much, else the best."""
    by_knobs: dict[str, list[Point]] = {}
    for point in points:
        by_knobs.setdefault(point.knobs, []).append(point)
    means = {
        knobs: (
            sum(p.attainment for p in group) / len(group),
            sum(p.gpu_hours for p in group) / len(group),
        )
        for knobs, group in by_knobs.items()
    }
    enough = [knobs for knobs, (attainment, _) in means.items() if attainment >= wanted]
    if enough:
        return min(enough, key=lambda knobs: means[knobs][1])
    return max(means, key=lambda knobs: means[knobs][0])


def savings(ours: Sequence[Point], curves: dict[str, list[Point]]) -> dict[str, dict[str, float]]:
    """Return, for each other policy and load, 1 less our GPU-hours over its own at our attainment.

    A load on which none of a policy's settings attains as much is left out: nothing is equal there.
    """
    table: dict[str, dict[str, float]] = {}
    for policy, points in curves.items():
        row = table.setdefault(policy, {})
        for mine in ours:
            cost = hours_for(mine.attainment, [p for p in points if p.load == mine.load])
            if cost.is_reached:
                row[mine.load] = 1.0 - mine.gpu_hours / cost.gpu_hours
    return table


LEAST_ATTAINMENT, NUM_LEVELS = 0.8, 21
"""Curves are compared from here on, at so many levels: nobody wants less."""


def saving_between(ours: Sequence[Point], theirs: Sequence[Point]) -> float | None:
    """Return what our curve saves over another on one load, on average over the attainments that both reach.

    None where they have none in common.
    """
    curves = [front(points) for points in (ours, theirs)]
    low = max(LEAST_ATTAINMENT, *(curve[0].attainment for curve in curves))
    high = min(curve[-1].attainment for curve in curves)
    if low > high:
        return None
    levels = [low + (high - low) * i / (NUM_LEVELS - 1) for i in range(NUM_LEVELS)]
    return mean(
        1.0 - hours_for(level, ours).gpu_hours / hours_for(level, theirs).gpu_hours for level in levels
    )


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 of nothing."""
    known = list(values)
    return sum(known) / len(known) if known else 0.0
