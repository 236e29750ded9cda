"""Whole rollouts with drains, as properties: they end, stay within their bounds, and cut nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from operator_builders import NOW, make_context, make_deployment, make_observed, make_pod
from tidemill_operator import names
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import Observed, PodView
from tidemill_operator.removal import replica_set_rank
from tidemill_operator.replicas import Replicas, decide_replicas

OLD = "0ld0ld00"


@dataclass
class World:
    """Two revisions with the controllers, the kubelet and engines played; a device may be scarce."""

    spec: dict[str, Any]
    chance: random.Random
    max_placed: int
    pods: list[PodView] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    streams: dict[str, int] = field(default_factory=dict)
    surge_note: str = ""
    num_made: int = 0
    cut: int = 0

    def reconcile(self) -> Replicas:
        context = make_context(self.spec)
        target = context.spec.target_revision
        observed = self._observed(target)
        replicas = decide_replicas(context, {}, observed, NOW)
        if replicas.asks:
            loads = {pod.uid: self._load(pod) for pod in self.pods}
            replicas = decide_replicas(context, {}, replace(observed, loads=loads), NOW)
        for change in replicas.changes:
            self._patch(change.uid, change.labels, change.annotations)
        self.counts = dict(replicas.planned)
        self.surge_note = replicas.scarcity.as_written() if replicas.scarcity is not None else ""
        return replicas

    def control(self) -> None:
        """Delete and make pods as the ReplicaSet controllers do, then place and start one that can be."""
        for revision, count in self.counts.items():
            mine = [pod for pod in self.pods if pod.revision == revision]
            while len(mine) > count:
                first = min(replica_set_rank(pod) for pod in mine)
                gone = self.chance.choice([pod for pod in mine if replica_set_rank(pod) == first])
                mine.remove(gone)
                self.pods.remove(gone)
                self.cut += self.streams.get(gone.uid, 0)
            for _ in range(count - len(mine)):
                self.num_made += 1
                self.pods.append(
                    make_pod(revision, self.num_made, is_scheduled=False, phase="Pending", is_running=False)
                )
        waiting = [pod for pod in self.pods if not pod.is_scheduled]
        num_placed = len(self.pods) - len(waiting)
        for pod in waiting:
            if num_placed < self.max_placed:
                num_placed += 1
                self._put(replace(pod, is_scheduled=True, phase="Running", is_running=True))
            else:
                said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
                self._put(replace(pod, unscheduled_message=said))

    def live(self) -> None:
        """Let each pod become ready, and each stream end, by chance."""
        for pod in list(self.pods):
            if pod.is_scheduled and self.chance.random() < 0.5:
                self._put(replace(pod, is_ready=pod.is_routable))
            if self.chance.random() < 0.4:
                self.streams[pod.uid] = 0
            elif pod.is_ready and pod.is_routable and self.chance.random() < 0.5:
                self.streams[pod.uid] = self.streams.get(pod.uid, 0) + 1

    def num_serving(self) -> int:
        return sum(pod.is_ready and pod.is_routable for pod in self.pods)

    def _observed(self, target: str) -> Observed:
        deployments = tuple(
            make_deployment(r, n, without_surge=self.surge_note if r == target else "")
            for r, n in self.counts.items()
        )
        return make_observed(deployments=deployments, pods=tuple(self.pods))

    def _load(self, pod: PodView) -> EngineLoad:
        streams = self.streams.get(pod.uid, 0)
        return EngineLoad(
            in_flight_requests=streams, in_flight_tokens=50 * streams, is_refusing=not pod.is_routable
        )

    def _patch(self, uid: str, labels: Any, annotations: Any) -> None:
        pod = next(pod for pod in self.pods if pod.uid == uid)
        cost = annotations.get(names.ANNOTATION_DELETION_COST, str(pod.deletion_cost))
        routable = labels.get(names.LABEL_ROUTABLE, str(pod.is_routable).lower())
        since = annotations.get(names.ANNOTATION_DRAIN_STARTED_AT, pod.drain_started_at)
        self._put(
            replace(
                pod,
                is_routable=routable == "true",
                drain_started_at=since,
                deletion_cost=int(cost or 0),
            )
        )

    def _put(self, pod: PodView) -> None:
        number = next(i for i, known in enumerate(self.pods) if known.uid == pod.uid)
        self.pods[number] = pod


def make_world(seed: int, desired: int, rollout: dict[str, Any], *, num_free: int) -> World:
    """Build a service whose old revision serves, as its spec has just changed."""
    pods = [make_pod(OLD, -number - 1, is_ready=True) for number in range(desired)]
    return World(
        spec={"replicas": desired, "rollout": rollout},
        chance=random.Random(seed),
        max_placed=desired + num_free,
        pods=pods,
        counts={OLD: desired},
        streams={pod.uid: 2 for pod in pods},
    )


def run(world: World, turns: int) -> None:
    for _ in range(turns):
        world.reconcile()
        world.control()
        world.live()


def is_over(world: World, desired: int) -> bool:
    is_new = all(pod.revision != OLD for pod in world.pods)
    return is_new and world.num_serving() == len(world.pods) == desired


SEEDS = st.integers(0, 2**32)
SIZES = st.integers(1, 6)


@examples(40)
@given(seed=SEEDS, desired=SIZES, surge=st.integers(1, 3), unavailable=st.integers(0, 2))
def test_a_rollout_with_room_keeps_its_bounds_cuts_nothing_and_ends(
    seed: int, desired: int, surge: int, unavailable: int
) -> None:
    world = make_world(seed, desired, {"maxSurge": surge, "maxUnavailable": unavailable}, num_free=surge)
    for _ in range(60 * desired):
        world.reconcile()
        assert world.num_serving() >= min(desired, max(0, desired - unavailable))
        world.control()
        assert len(world.pods) <= desired + surge
        world.live()
        if is_over(world, desired):
            break
    assert is_over(world, desired)
    assert world.cut == 0


@examples(40)
@given(seed=SEEDS, desired=SIZES, placed=st.integers(1, 6))
def test_a_rollout_without_a_free_gpu_ends_whatever_fits_and_cuts_nothing(
    seed: int, desired: int, placed: int
) -> None:
    """Where fewer fit than are wanted, the rest of the old replicas have waited all along."""
    world = make_world(seed, desired, {}, num_free=0)
    fits = min(desired, placed)
    world.max_placed = fits
    world.pods = [
        pod if number < fits else replace(pod, is_ready=False, is_scheduled=False, phase="Pending")
        for number, pod in enumerate(world.pods)
    ]
    world.streams = {pod.uid: 2 for pod in world.pods if pod.is_ready}
    run(world, 80 * desired)
    assert all(pod.revision != OLD for pod in world.pods)
    assert world.num_serving() == fits
    assert len(world.pods) == desired
    assert world.cut == 0


@examples(20)
@given(seed=SEEDS, desired=SIZES, percent=st.integers(1, 99))
def test_a_canary_leaves_the_current_revision_at_full_size_and_can_be_withdrawn(
    seed: int, desired: int, percent: int
) -> None:
    world = make_world(seed, desired, {"canary": {"trafficPercent": percent}}, num_free=100)
    for _ in range(20):
        replicas = world.reconcile()
        assert replicas.planned[OLD] == desired
        world.control()
        world.live()
    size = -(-desired * percent // 100)
    assert sum(pod.revision != OLD for pod in world.pods) == size
    assert world.cut == 0
