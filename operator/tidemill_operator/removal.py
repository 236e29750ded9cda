"""Which replicas of one revision go, which come back, and how far its Deployment may be lowered now.

Pure. Knows the order of victims, how far a drain is, and in which order the ReplicaSet controller deletes:
the count is lowered only when that order takes exactly the pods that are done. A replica that is needed again
comes back when its engine answers, and is replaced when that takes longer than a drain may. State stands in
the pods themselves (label and annotation), so a run after a restart goes on. Refuses to know why a number is
wanted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Final

from tidemill_operator import names
from tidemill_operator.actions import EngineCall, PodChange
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import PodView

# The engine takes requests for so long after a drain began, while the news spreads (its --drain-grace).
ACCEPTING_SECONDS: Final = 5
# SIGTERM drains as well, so an engine whose admin port does not answer is told to end by it.
UNREACHABLE_SECONDS: Final = 30
COST_DRAINING: Final = 1_000_000
COST_DONE: Final = -1_000_000
_PHASE_RANKS: Final = {"Pending": 0, "Unknown": 1}


class Progress(Enum):
    """How far a draining replica is."""

    FINISHING = auto()
    DRAINED = auto()
    OVERDUE = auto()
    UNREACHABLE = auto()


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One revision's pods that stay, and what their engines said; `loads` is None before they were asked."""

    asked: int
    pods: Sequence[PodView]
    now: str
    drain_timeout_seconds: int
    loads: Mapping[str, EngineLoad | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """A replica that the lowered count takes, and the streams that end with it."""

    pod: str
    progress: Progress
    num_streams: int


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What to do now: the Deployment's count, changes of pods, and pods whose load must be known first."""

    count: int
    changes: tuple[PodChange, ...] = ()
    asks: frozenset[str] = frozenset()
    leaving: tuple[Leaving, ...] = ()
    num_draining: int = 0


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The replicas in the order in which they should go."""

    free: list[PodView] = field(default_factory=list)
    draining: list[PodView] = field(default_factory=list)
    serving: list[PodView] = field(default_factory=list)

    def victims(self, count: int) -> list[PodView]:
        return [*self.free, *self.draining, *self.serving][:count]


def plan_removal(scene: Scene, wanted: int) -> Removal:
    """Bring one revision closer to the number of replicas that it should have."""
    surplus = max(0, len(scene.pods) - wanted)
    choice = _choose(scene)
    victims = choice.victims(surplus)
    lost = [pod for pod in choice.draining if pod not in victims and _is_lost(pod, scene)]
    victims += lost
    victim_uids = {pod.uid for pod in victims}
    progress = {pod.uid: _progress(pod, scene) for pod in choice.draining}
    done = {uid for uid in progress if uid in victim_uids and progress[uid] is not Progress.FINISHING}
    removable = {pod.uid for pod in choice.free} | done
    most = sum(pod.uid in removable for pod in victims)
    ordered = sorted(scene.pods, key=replica_set_rank)
    num_lowered = _num_safely_lowered(ordered, removable, most)
    count = wanted
    is_going = bool(lost) and len(scene.pods) > scene.asked
    if wanted - len(lost) < scene.asked or is_going:
        count = min(scene.asked, max(wanted - len(lost), len(scene.pods) - num_lowered))
    going = ordered[:num_lowered] if count < min(scene.asked, len(scene.pods)) else []
    return Removal(
        count=count,
        changes=tuple(
            change
            for pod in scene.pods
            if (change := _change(pod, pod.uid in victim_uids, progress.get(pod.uid), scene)) is not None
        ),
        asks=_asks(choice, surplus) if scene.loads is None else frozenset(),
        leaving=tuple(_leaving(pod, progress[pod.uid], scene) for pod in going if pod.uid in progress),
        num_draining=len(victims)
        - sum(pod.uid in victim_uids for pod in choice.free)
        + sum(pod.uid not in victim_uids and _is_silent(pod, scene) for pod in choice.draining),
    )


def replica_set_rank(pod: PodView) -> tuple[bool, int, bool, int]:
    """Give a pod's place in the order in which the ReplicaSet controller deletes, as far as it is certain."""
    return (pod.is_scheduled, _PHASE_RANKS.get(pod.phase, 2), pod.is_ready, pod.deletion_cost)


def _choose(scene: Scene) -> _Choice:
    """Put what serves nobody first, then what drains already, then what has the least to finish."""
    draining = [pod for pod in scene.pods if pod.is_draining]
    others = [pod for pod in scene.pods if not pod.is_draining]
    loads = scene.loads or {}

    def weight(pod: PodView) -> tuple[bool, int, int, str]:
        load = loads.get(pod.uid)
        if load is None:
            return (True, 0, 0, pod.name)
        return (False, load.in_flight_tokens, load.num_cached_blocks, pod.name)

    return _Choice(
        free=sorted((p for p in others if not p.is_ready), key=lambda p: (replica_set_rank(p), p.name)),
        draining=sorted(draining, key=lambda p: (p.drain_started_at or scene.now, p.name)),
        serving=sorted((p for p in others if p.is_ready), key=weight),
    )


def _asks(choice: _Choice, surplus: int) -> frozenset[str]:
    """Say whose load must be known: of those that drain, and of all that serve when one of them must go."""
    asked = {pod.uid for pod in choice.draining}
    if surplus > len(choice.free) + len(choice.draining):
        asked |= {pod.uid for pod in choice.serving}
    return frozenset(asked)


def _progress(pod: PodView, scene: Scene) -> Progress:
    if not pod.ip:
        return Progress.DRAINED
    load = (scene.loads or {}).get(pod.uid)
    if load is not None and load.is_refusing and load.in_flight_requests == 0:
        return Progress.DRAINED
    lasted = _lasted_seconds(pod, scene)
    if _is_silent(pod, scene) and lasted >= UNREACHABLE_SECONDS:
        return Progress.UNREACHABLE
    if lasted >= scene.drain_timeout_seconds + ACCEPTING_SECONDS:
        return Progress.OVERDUE
    return Progress.FINISHING


def _is_silent(pod: PodView, scene: Scene) -> bool:
    """Tell whether the pod's engine was asked and did not answer; without an address there is none."""
    return bool(pod.ip) and scene.loads is not None and scene.loads.get(pod.uid) is None


def _is_lost(pod: PodView, scene: Scene) -> bool:
    """Tell whether a replica that is needed again has been silent for as long as a drain may take."""
    deadline = max(UNREACHABLE_SECONDS, scene.drain_timeout_seconds + ACCEPTING_SECONDS)
    return _is_silent(pod, scene) and _lasted_seconds(pod, scene) >= deadline


def _lasted_seconds(pod: PodView, scene: Scene) -> float:
    if pod.drain_started_at is None:
        return 0.0
    return (_instant(scene.now) - _instant(pod.drain_started_at)).total_seconds()


def _num_safely_lowered(ordered: Sequence[PodView], removable: set[str], most: int) -> int:
    """Count how many pods the ReplicaSet controller may delete so that it can only take removable ones.

    Pods of equal rank may be taken in any order, so all of them must be removable.
    """
    for number in range(most, 0, -1):
        rank = replica_set_rank(ordered[number - 1])
        if all(pod.uid in removable for pod in ordered if replica_set_rank(pod) <= rank):
            return number
    return 0


def _change(pod: PodView, is_victim: bool, progress: Progress | None, scene: Scene) -> PodChange | None:
    """Say what one pod's labels, annotations and engine need; None when they are as they should be.

    A replica whose engine does not answer drains for all we know, so it stays out of routing.
    """
    if progress is None:
        if is_victim and pod.is_ready:
            return _begin(pod, scene.now)
        return None if pod.has_routable_label else _mark_routable(pod)
    if not is_victim and not _is_silent(pod, scene):
        return _take_back(pod)
    cost = COST_DONE if is_victim and progress is not Progress.FINISHING else COST_DRAINING
    if pod.deletion_cost == cost and pod.drain_started_at is not None:
        return None
    annotations = {
        names.ANNOTATION_DELETION_COST: str(cost),
        names.ANNOTATION_DRAIN_STARTED_AT: pod.drain_started_at or scene.now,
    }
    return PodChange(pod=pod.name, uid=pod.uid, ip=pod.ip, annotations=annotations)


def _begin(pod: PodView, now: str) -> PodChange:
    return PodChange(
        pod=pod.name,
        uid=pod.uid,
        ip=pod.ip,
        labels={names.LABEL_ROUTABLE: names.ROUTABLE_NO},
        annotations={
            names.ANNOTATION_DRAIN_STARTED_AT: now,
            names.ANNOTATION_DELETION_COST: str(COST_DRAINING),
        },
        call=EngineCall.DRAIN,
    )


def _take_back(pod: PodView) -> PodChange:
    return PodChange(
        pod=pod.name,
        uid=pod.uid,
        ip=pod.ip,
        labels={names.LABEL_ROUTABLE: names.ROUTABLE_YES},
        annotations={names.ANNOTATION_DRAIN_STARTED_AT: None, names.ANNOTATION_DELETION_COST: None},
        call=EngineCall.TAKE_BACK,
    )


def _mark_routable(pod: PodView) -> PodChange:
    """Label a pod whose frozen template is from before the label."""
    labels = {names.LABEL_ROUTABLE: names.ROUTABLE_YES}
    return PodChange(pod=pod.name, uid=pod.uid, ip=pod.ip, labels=labels)


def _leaving(pod: PodView, progress: Progress, scene: Scene) -> Leaving:
    load = (scene.loads or {}).get(pod.uid)
    num_streams = 0 if load is None else load.in_flight_requests
    return Leaving(pod=pod.name, progress=progress, num_streams=num_streams)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)
