"""How many replicas each revision is given now, and which pods come and go for that.

Pure. Knows how rollout, canary and removal fit together: the old revision shrinks by drains, and the new one
grows into what the old one has given up. Refuses to know how many replicas are desired (desired.py), and what
status says of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill_operator import canary as canary_module
from tidemill_operator.actions import PodChange
from tidemill_operator.failures import Failure
from tidemill_operator.manifests import Context
from tidemill_operator.observed import Observed
from tidemill_operator.removal import Leaving, Removal, Scene, plan_removal
from tidemill_operator.rollout import (
    Bounds,
    RevisionCounts,
    bounds_of,
    grow_target,
    shrink_others,
    stable_of,
)
from tidemill_operator.scarcity import Scarcity, find_scarcity, read_scarcity
from tidemill_operator.spec import CanarySpec

Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """What each revision is given, and what that means for the service.

    `planned` counts by revision, `lowered` the revisions whose count goes down. `canary_failure` is set in
    the run that stops a canary; `failed` names the revision from then on. `scarcity` is why the target's
    rollout has no surge, and `has_just_lost_surge` says that this run decided so.
    """

    planned: Mapping[str, int]
    lowered: frozenset[str]
    bounds: Bounds
    changes: tuple[PodChange, ...] = ()
    asks: frozenset[str] = frozenset()
    leaving: tuple[Leaving, ...] = ()
    num_draining: int = 0
    num_others_asked: int = 0
    serving_revision: str = ""
    num_target: int = 0
    is_canary: bool = False
    failed: str | None = None
    canary_failure: Failure | None = None
    scarcity: Scarcity | None = None
    has_just_lost_surge: bool = False


@dataclass(frozen=True, kw_only=True)
class _World:
    """What every step of the decision needs."""

    context: Context
    observed: Observed
    now: str
    target: RevisionCounts
    others: Sequence[RevisionCounts]

    @property
    def is_rolling(self) -> bool:
        """Tell whether the target takes over from other revisions; a canary does not."""
        has_others = any(counts.asked > 0 or counts.existing > 0 for counts in self.others)
        return has_others and self.canary is None

    @property
    def canary(self) -> CanarySpec | None:
        """Give the canary's spec while there is a revision that it could replace."""
        wanted = self.context.desired_replicas > 0 and stable_of(self.others) is not None
        return self.context.spec.rollout.canary if wanted else None


@dataclass(frozen=True, kw_only=True)
class _Canary:
    """A canary's state: the failed revision, and why it is stopped just now."""

    failed: str | None = None
    failure: Failure | None = None
    asks: frozenset[str] = frozenset()


def decide_replicas(context: Context, status: Raw, observed: Observed, now: str) -> Replicas:
    """Decide for all revisions of a service at once."""
    target_revision = context.spec.target_revision
    world = _World(
        context=context,
        observed=observed,
        now=now,
        target=_counts(target_revision, observed),
        others=[_counts(d.revision, observed) for d in observed.deployments if d.revision != target_revision],
    )
    canary = _judge_canary(world, status)
    begun = _begun_scarcity(world)
    scarcity = begun or _new_scarcity(world)
    desired = context.desired_replicas
    bounds = bounds_of(
        context.spec.rollout,
        desired if scarcity is None else min(desired, scarcity.num_placed),
        without_surge=scarcity is not None,
        has_devices=context.spec.num_gpus > 0,
    )
    removals = _remove(world, bounds, canary)
    planned = {revision: removal.count for revision, removal in removals.items()}
    serving = max(
        (counts for counts in world.others if planned[counts.revision] > 0),
        key=lambda counts: (counts.ready, counts.created_at),
        default=world.target,
    )
    return Replicas(
        planned=planned,
        lowered=frozenset(c.revision for c in (world.target, *world.others) if planned[c.revision] < c.asked),
        bounds=bounds,
        changes=tuple(change for removal in removals.values() for change in removal.changes),
        asks=canary.asks.union(*(removal.asks for removal in removals.values())),
        leaving=tuple(leaving for removal in removals.values() for leaving in removal.leaving),
        num_draining=sum(removal.num_draining for removal in removals.values()),
        num_others_asked=sum(planned[counts.revision] for counts in world.others),
        serving_revision=serving.revision,
        num_target=_canary_size(world, canary) if world.canary is not None else context.desired_replicas,
        is_canary=world.canary is not None,
        failed=canary.failed,
        canary_failure=canary.failure,
        scarcity=scarcity,
        has_just_lost_surge=scarcity is not None and begun is None,
    )


def _remove(world: _World, bounds: Bounds, canary: _Canary) -> dict[str, Removal]:
    """Plan each revision's removal: first the old ones', then what the target may have beside them."""
    if world.canary is not None:
        stable = stable_of(world.others)
        wanted = {c.revision: bounds.desired if c is stable else 0 for c in world.others}
    else:
        wanted = dict(shrink_others(world.target, world.others, bounds))
    removals = {c.revision: _removal(world, c, wanted[c.revision]) for c in world.others}
    if world.canary is not None:
        num_target = _canary_size(world, canary)
    else:
        counts = {revision: removal.count for revision, removal in removals.items()}
        num_target = grow_target(world.target, world.others, counts, bounds)
    removals[world.target.revision] = _removal(world, world.target, num_target)
    return removals


def _removal(world: _World, counts: RevisionCounts, wanted: int) -> Removal:
    scene = Scene(
        asked=counts.asked,
        pods=world.observed.staying_pods(counts.revision),
        now=world.now,
        drain_timeout_seconds=world.context.spec.drain_timeout_seconds,
        loads=world.observed.loads,
    )
    return plan_removal(scene, wanted)


def _counts(revision: str, observed: Observed) -> RevisionCounts:
    deployment = observed.deployment(revision)
    return RevisionCounts(
        revision=revision,
        asked=0 if deployment is None else deployment.asked_replicas,
        ready=observed.num_ready(revision),
        existing=len(observed.live_pods(revision)),
        unscheduled=sum(not pod.is_scheduled for pod in observed.staying_pods(revision)),
        created_at="" if deployment is None else deployment.created_at,
    )


def _begun_scarcity(world: _World) -> Scarcity | None:
    """Give what was found when the rollout lost its surge, while it lasts."""
    deployment = world.observed.deployment(world.target.revision)
    return None if deployment is None or not world.is_rolling else read_scarcity(deployment.without_surge)


def _new_scarcity(world: _World) -> Scarcity | None:
    """Find out whether the new revision waits for a device that old replicas may hold."""
    if not world.is_rolling:
        return None
    updated = world.observed.staying_pods(world.target.revision)
    return find_scarcity(updated, world.observed.staying_pods())


def _canary_size(world: _World, canary: _Canary) -> int:
    if world.canary is None or canary.failed is not None:
        return 0
    return canary_module.size_of(world.canary, world.context.desired_replicas)


def _judge_canary(world: _World, status: Raw) -> _Canary:
    """Say whether the canary goes on; one that has failed stays so until its revision or the spec changes."""
    spec, target = world.canary, world.target.revision
    stable = stable_of(world.others)
    if spec is None or stable is None:
        return _Canary()
    if (status.get("revision") or {}).get("failed") == target:
        return _Canary(failed=target)
    updated = world.observed.staying_pods(target)
    current = world.observed.staying_pods(stable.revision)
    loads = world.observed.loads
    if loads is None and any(pod.is_ready for pod in updated):
        return _Canary(asks=frozenset(pod.uid for pod in (*updated, *current) if pod.is_ready))
    failure = canary_module.find_reason_to_stop(
        updated,
        canary_module.answers_of(updated, loads or {}),
        canary_module.answers_of(current, loads or {}),
        spec,
        world.context.spec.model.load_timeout_seconds,
    )
    return _Canary() if failure is None else _Canary(failed=target, failure=failure)
