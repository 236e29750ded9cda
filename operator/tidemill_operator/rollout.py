"""How many replicas each revision should have now, so that a new one replaces an old one.

Pure. Knows counts only. Keeps the ready replicas at or above desired - maxUnavailable and the total at or
below desired + maxSurge, and gives replicas to at most two revisions. Refuses to know why a replica is not
ready.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill_operator.spec import RolloutSpec


@dataclass(frozen=True, kw_only=True)
class RevisionCounts:
    """One revision as it stands: replicas asked for, ready ones, and pods that exist, leaving ones too."""

    revision: str
    asked: int
    ready: int
    existing: int
    created_at: str = ""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The least number of ready replicas and the greatest number of all, for a rollout."""

    least_ready: int
    most: int
    counts_leaving: bool


def bounds_of(rollout: RolloutSpec, desired: int) -> Bounds:
    """Resolve surge and unavailability for a number of replicas; never both nothing."""
    surge = rollout.max_surge.of(desired, round_up=True)
    unavailable = min(rollout.max_unavailable.of(desired, round_up=False), desired)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(least_ready=max(0, desired - unavailable), most=desired + surge, counts_leaving=surge == 0)


def split_replicas(
    desired: int, target: RevisionCounts, others: Sequence[RevisionCounts], rollout: RolloutSpec
) -> Mapping[str, int]:
    """Give each revision its replicas: the target grows into the surge, the old shrinks as it is ready."""
    planned = {counts.revision: 0 for counts in others}
    if desired == 0:
        return {**planned, target.revision: 0}
    bounds = bounds_of(rollout, desired)
    old = _stable(others)
    if old is not None:
        planned[old.revision] = _shrink(old, target, bounds)
    taken = sum(planned.values())
    if bounds.counts_leaving:
        taken = sum(max(planned[counts.revision], counts.existing) for counts in others)
    room = bounds.most - taken if old is not None or bounds.counts_leaving else desired
    return {**planned, target.revision: min(desired, max(target.asked, room))}


def _stable(others: Sequence[RevisionCounts]) -> RevisionCounts | None:
    """Choose the old revision that keeps serving: the one with the most ready replicas, then the newest."""
    serving = [counts for counts in others if counts.asked > 0]
    return max(serving, key=lambda counts: (counts.ready, counts.created_at), default=None)


def _shrink(old: RevisionCounts, target: RevisionCounts, bounds: Bounds) -> int:
    """Say how many replicas the old revision keeps; one that has none ready has nothing to lose."""
    if old.ready == 0:
        return 0
    starting = max(0, target.asked - target.ready)
    removable = max(0, target.asked + old.asked - bounds.least_ready - starting)
    unready = min(max(0, old.asked - old.ready), removable)
    spare = max(0, old.ready + target.ready - bounds.least_ready)
    return max(0, old.asked - unready - min(spare, removable - unready))
