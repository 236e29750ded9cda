"""How many replicas each revision should have now, so that a new one replaces an old one.

Pure. Knows counts only. Keeps the ready replicas at or above desired - maxUnavailable and the total at or
below desired + maxSurge, and gives replicas to at most two revisions. The old one is told what it should come
down to; the new one grows into what the old one has really given up, which a drain may delay. Refuses to know
why a replica is not ready.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill_operator.spec import RolloutSpec


@dataclass(frozen=True, kw_only=True)
class RevisionCounts:
    """One revision as it stands: replicas asked for, ready ones, and pods that exist, leaving ones too.

    `unscheduled`: pods that no node takes.
    """

    revision: str
    asked: int
    ready: int
    existing: int
    unscheduled: int = 0
    created_at: str = ""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The least number of ready replicas and the greatest number of all, for a rollout.

    `counts_leaving`: pods that are on their way out still take room, as those with a GPU do.
    """

    desired: int
    least_ready: int
    most: int
    counts_leaving: bool
    is_without_surge: bool = False


def bounds_of(
    rollout: RolloutSpec, desired: int, *, without_surge: bool = False, has_devices: bool = False
) -> Bounds:
    """Resolve surge and unavailability for a number of replicas; never both nothing."""
    surge = 0 if without_surge else rollout.max_surge.of(desired, round_up=True)
    unavailable = min(rollout.max_unavailable.of(desired, round_up=False), desired)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(
        desired=desired,
        least_ready=max(0, desired - unavailable),
        most=desired + surge,
        counts_leaving=surge == 0 or has_devices,
        is_without_surge=without_surge,
    )


def stable_of(others: Sequence[RevisionCounts]) -> RevisionCounts | None:
    """Choose the old revision that keeps serving: the one with the most ready replicas, then the newest."""
    serving = [counts for counts in others if counts.asked > 0]
    return max(serving, key=lambda counts: (counts.ready, counts.created_at), default=None)


def shrink_others(
    target: RevisionCounts, others: Sequence[RevisionCounts], bounds: Bounds
) -> Mapping[str, int]:
    """Say to how many replicas each revision but the target should come down."""
    wanted = {counts.revision: 0 for counts in others}
    old = stable_of(others)
    if old is not None and bounds.desired > 0:
        wanted[old.revision] = _shrink(old, target, bounds)
    return wanted


def grow_target(
    target: RevisionCounts, others: Sequence[RevisionCounts], counts: Mapping[str, int], bounds: Bounds
) -> int:
    """Say how many replicas the target gets, beside the counts that the others are given in this run."""
    taken = sum(counts.values())
    if bounds.counts_leaving:
        taken = sum(max(counts[other.revision], other.existing) for other in others)
    return min(bounds.desired, max(_kept(target, bounds), bounds.most - taken))


def _kept(target: RevisionCounts, bounds: Bounds) -> int:
    """Give what the target keeps in any case: without surge, not what waits for a node."""
    return target.asked - target.unscheduled if bounds.is_without_surge else target.asked


def _shrink(old: RevisionCounts, target: RevisionCounts, bounds: Bounds) -> int:
    """Say how many replicas the old revision keeps; one that has none ready has nothing to lose."""
    if old.ready == 0:
        return 0
    kept = _kept(target, bounds)
    starting = max(0, kept - target.ready)
    removable = max(0, kept + old.asked - bounds.least_ready - starting)
    unready = min(max(0, old.asked - old.ready), removable)
    spare = max(0, old.ready + target.ready - bounds.least_ready)
    return max(0, old.asked - unready - min(spare, removable - unready))
