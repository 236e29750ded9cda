"""Whole histories of removal: whatever happens, no stream is cut, and what is wanted comes about."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from removal_builders import serving, starting
from tidemill_operator import names
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import PodView
from tidemill_operator.removal import (
    Removal,
    Scene,
    plan_removal,
    replica_set_rank,
)


@dataclass
class Fleet:
    """One Deployment with a ReplicaSet controller that breaks ties by chance, and engines that finish."""

    chance: random.Random
    pods: list[PodView]
    asked: int
    streams: dict[str, int]
    num_made: int = 0
    second: int = 0
    cut: int = 0

    def now(self) -> str:
        moment = datetime(2026, 11, 29, 12, tzinfo=UTC) + timedelta(seconds=self.second)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def reconcile(self, wanted: int) -> Removal:
        scene = Scene(asked=self.asked, pods=self.pods, now=self.now(), drain_timeout_seconds=10_000)
        if plan_removal(scene, wanted).asks:
            scene = replace(scene, loads={pod.uid: self._load(pod) for pod in self.pods})
        removal = plan_removal(scene, wanted)
        for change in removal.changes:
            number = next(i for i, pod in enumerate(self.pods) if pod.uid == change.uid)
            pod = self.pods[number]
            cost = change.annotations.get(names.ANNOTATION_DELETION_COST, str(pod.deletion_cost))
            self.pods[number] = replace(
                pod,
                is_routable=change.labels.get(names.LABEL_ROUTABLE, str(pod.is_routable).lower()) == "true",
                drain_started_at=change.annotations.get(
                    names.ANNOTATION_DRAIN_STARTED_AT, pod.drain_started_at
                ),
                deletion_cost=int(cost or 0),
            )
        self.asked = removal.count
        return removal

    def control_replica_set(self) -> None:
        """Delete and create as the controller does; a stream that a ready replica loses is counted."""
        while len(self.pods) > self.asked:
            first = min(replica_set_rank(pod) for pod in self.pods)
            gone = self.chance.choice([pod for pod in self.pods if replica_set_rank(pod) == first])
            self.pods.remove(gone)
            if gone.is_ready or not gone.is_routable:
                self.cut += self.streams.get(gone.uid, 0)
        while len(self.pods) < self.asked:
            self.num_made += 1
            self.pods.append(starting(f"new-{self.num_made}", phase="Pending", is_scheduled=False))

    def disturb(self) -> None:
        """Let one thing happen to one pod."""
        self.second += 1
        if not self.pods:
            return
        number = self.chance.randrange(len(self.pods))
        pod = self.pods[number]
        what = self.chance.choice(["finish", "start", "blip", "evict", "probe", "request"])
        if what == "finish":
            self.streams[pod.uid] = 0
        elif what == "request" and pod.is_routable and pod.is_ready:
            self.streams[pod.uid] = self.streams.get(pod.uid, 0) + 1
        elif what == "evict":
            del self.pods[number]
        elif what in {"start", "probe"} and pod.is_routable:
            self.pods[number] = replace(pod, is_ready=True, is_scheduled=True, phase="Running")
        elif what == "blip" or (what == "probe" and not pod.is_routable):
            self.pods[number] = replace(pod, is_ready=False)

    def _load(self, pod: PodView) -> EngineLoad:
        streams = self.streams.get(pod.uid, 0)
        return EngineLoad(
            in_flight_requests=streams, in_flight_tokens=50 * streams, is_refusing=not pod.is_routable
        )


@examples(300)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 6),
    wishes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    pace=st.integers(1, 5),
)
def test_no_stream_of_a_ready_or_draining_replica_is_cut_whatever_happens(
    seed: int, size: int, wishes: list[int], pace: int
) -> None:
    chance = random.Random(seed)
    pods = [serving(f"p{number}") for number in range(size)]
    streams = {pod.uid: chance.randrange(4) for pod in pods}
    fleet = Fleet(chance=chance, pods=pods, asked=size, streams=streams)
    for wish in wishes:
        for _ in range(pace):
            fleet.reconcile(wish)
            fleet.control_replica_set()
            fleet.disturb()
    assert fleet.cut == 0


@examples(200)
@given(
    seed=st.integers(0, 2**32), sizes=st.tuples(st.integers(1, 6), st.integers(0, 6)), noise=st.integers(0, 8)
)
def test_ends_with_what_is_wanted_once_streams_end(seed: int, sizes: tuple[int, int], noise: int) -> None:
    size, wanted = sizes
    pods = [serving(f"p{number}") for number in range(size)]
    fleet = Fleet(chance=random.Random(seed), pods=pods, asked=size, streams={p.uid: 2 for p in pods})
    for _ in range(noise):
        fleet.reconcile(wanted)
        fleet.control_replica_set()
        fleet.disturb()
    fleet.streams.clear()
    for _ in range(6):
        fleet.reconcile(wanted)
        fleet.control_replica_set()
        fleet.pods = [
            replace(p, is_ready=p.is_routable, is_scheduled=True, phase="Running") for p in fleet.pods
        ]
    assert (fleet.asked, len(fleet.pods)) == (wanted, wanted)
    assert all(pod.is_routable and pod.deletion_cost == 0 for pod in fleet.pods)
