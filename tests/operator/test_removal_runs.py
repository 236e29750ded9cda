"""Scale-downs and rollouts as whole runs of the reconciler, with the controllers and engines played."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from operator_builders import make_service
from operator_fakes import KEY, Controllers, FakeApi, FakeEngines, Killed, make_reconciler
from tidemill_operator import names
from tidemill_operator.queue import Again, Outcome
from tidemill_operator.reconcile import Reconciler
from tidemill_operator.spec import revision_of

REVISION = revision_of(make_service())


class Scene:
    """One service with its operator, controllers and engines."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.api = FakeApi()
        self.engines = FakeEngines()
        self.controllers = Controllers(self.api, self.engines)
        self.reconciler = make_reconciler(self.api, self.engines)
        self.edit(spec or {})

    def edit(self, spec: dict[str, Any]) -> None:
        before = self.api.objects.get((names.KIND, *KEY), {})
        self.api.store({**before, **make_service(spec)})

    def restart_operator(self) -> Reconciler:
        self.reconciler = make_reconciler(self.api, self.engines)
        return self.reconciler

    async def turns(self, count: int = 4) -> Outcome | Again:
        outcome: Outcome | Again = Outcome.DONE
        for _ in range(count):
            outcome = await self.reconciler.run(KEY)
            self.controllers.act()
        return outcome

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects[(names.KIND, *KEY)]["status"]
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(c for c in self.status()["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def is_routable(self, pod: str) -> bool:
        labels = self.controllers.pods()[pod]["metadata"]["labels"]
        return bool(labels[names.LABEL_ROUTABLE] == "true")

    def num_ready(self) -> int:
        def is_ready(pod: dict[str, Any]) -> bool:
            return {"type": "Ready", "status": "True"} in pod["status"].get("conditions", [])

        return sum(is_ready(pod) for pod in self.controllers.pods().values())

    def events(self) -> list[str]:
        return [event["reason"] for event in self.api.events]


async def busy(replicas: int, **requests: int) -> Scene:
    """Bring up replicas, each with its number of requests."""
    scene = Scene({"replicas": replicas})
    await scene.turns()
    for pod, number in requests.items():
        scene.engines.num_requests[f"ip-of-{pod.replace('_', '-')}"] = number
    return scene


async def test_a_scale_down_waits_for_the_streams_of_the_least_busy_replica() -> None:
    scene = await busy(3, pod_1=5, pod_2=2, pod_3=9)
    scene.edit({"replicas": 2})
    outcome = await scene.turns(6)
    assert outcome == Again(seconds=1.0)
    assert scene.controllers.counts() == {REVISION: 3}
    assert not scene.is_routable("pod-2")
    assert scene.status()["drainingReplicas"] == 1
    assert scene.status()["readyReplicas"] == 2
    assert scene.condition("Progressing") == ("True", "ScalingDown")
    scene.engines.num_requests["ip-of-pod-2"] = 0
    assert await scene.turns() is Outcome.DONE
    assert scene.controllers.gone == ["pod-2"]
    assert scene.condition("Progressing") == ("False", "Settled")
    assert scene.status()["drainingReplicas"] == 0


async def test_a_replica_leaves_routing_before_its_engine_drains_and_hears_of_it_in_every_run() -> None:
    scene = await busy(2, pod_1=1, pod_2=1)
    scene.edit({"replicas": 1})
    await scene.reconciler.run(KEY)
    assert not scene.is_routable("pod-1")
    assert scene.engines.calls == [("drain", "ip-of-pod-1")]
    scene.engines.draining.clear()
    await scene.reconciler.run(KEY)
    assert scene.engines.draining == {"ip-of-pod-1"}


@pytest.mark.parametrize("dies_at", range(1, 7))
async def test_an_operator_killed_in_a_drain_goes_on_with_the_same_victim(dies_at: int) -> None:
    scene = await busy(3, pod_1=5, pod_2=1, pod_3=9)
    scene.edit({"replicas": 2})
    scene.api.dies_at = scene.api.num_writes + dies_at
    try:
        await scene.turns(3)
        scene.engines.num_requests["ip-of-pod-2"] = 0
        await scene.turns(3)
    except Killed:
        scene.restart_operator()
    scene.engines.num_requests["ip-of-pod-2"] = 0
    await scene.turns(6)
    assert scene.controllers.gone == ["pod-2"]
    assert scene.controllers.counts() == {REVISION: 2}


async def test_returning_load_takes_a_drain_back_and_makes_no_pod() -> None:
    scene = await busy(2, pod_1=1, pod_2=1)
    scene.edit({"replicas": 1})
    await scene.turns()
    scene.edit({"replicas": 2})
    await scene.turns()
    assert sorted(scene.controllers.pods()) == ["pod-1", "pod-2"]
    assert scene.is_routable("pod-1")
    assert ("take back", "ip-of-pod-1") in scene.engines.calls
    assert scene.condition("Progressing") == ("False", "Settled")
    assert {"DrainStarted", "DrainCancelled"} <= set(scene.events())


async def test_a_replica_whose_engine_cannot_be_told_stays_out_of_routing_until_it_can() -> None:
    scene = await busy(2, pod_1=1, pod_2=1)
    scene.edit({"replicas": 1})
    await scene.turns()
    scene.engines.dead.add("ip-of-pod-1")
    scene.edit({"replicas": 2})
    assert await scene.turns() == Again(seconds=1.0)
    assert not scene.is_routable("pod-1")
    assert "DrainCancelled" not in scene.events()
    scene.engines.dead.clear()
    assert await scene.turns() is Outcome.DONE
    assert scene.is_routable("pod-1")
    assert "DrainCancelled" in scene.events()


async def test_an_engine_that_falls_silent_when_it_is_taken_back_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = await busy(2, pod_1=1, pod_2=1)
    scene.edit({"replicas": 1})
    await scene.turns()
    scene.edit({"replicas": 2})
    with monkeypatch.context() as silence:
        silence.setattr(scene.engines, "take_back", _does_not_hear)
        assert await scene.turns(1) == Again(seconds=1.0)
        assert not scene.is_routable("pod-1")
    assert await scene.turns() is Outcome.DONE
    assert scene.is_routable("pod-1")


async def _does_not_hear(_ip: str, _token: str) -> bool:
    return False


async def test_a_victim_that_is_evicted_lowers_the_count_once_and_nobody_else_goes() -> None:
    scene = await busy(3, pod_1=1, pod_2=2, pod_3=3)
    scene.edit({"replicas": 2})
    await scene.turns()
    scene.controllers.end("pod-1")
    await scene.turns(6)
    assert scene.controllers.counts() == {REVISION: 2}
    assert sorted(scene.controllers.pods()) == ["pod-2", "pod-3"]
    assert ("drain", "ip-of-pod-2") not in scene.engines.calls


async def test_a_deployment_that_changed_since_it_was_read_is_not_lowered() -> None:
    scene = await busy(2, pod_1=0, pod_2=3)
    scene.edit({"replicas": 1})
    await scene.reconciler.run(KEY)
    await scene.reconciler.run(KEY)
    (key,) = [key for key in scene.api.objects if key[0] == "Deployment"]
    changed = copy.deepcopy(scene.api.objects[key])
    changed["metadata"]["annotations"]["someone"] = "was here"
    changed["metadata"]["resourceVersion"] = "999999"
    scene.api.objects[key] = changed
    outcome = await scene.reconciler.run(KEY)
    assert outcome == Again(seconds=0.2)
    assert scene.controllers.counts() == {REVISION: 2}


async def test_a_rollout_drains_the_old_revision_and_stays_within_its_surge() -> None:
    scene = await busy(2, pod_1=4, pod_2=6)
    scene.edit({"replicas": 2, "engine": {"dtype": "float32"}})
    await scene.turns(6)
    new = scene.status()["revision"]["update"]
    assert scene.controllers.counts() == {REVISION: 2, new: 1}
    assert not scene.is_routable("pod-1")
    scene.engines.num_requests["ip-of-pod-1"] = 0
    await scene.turns(6)
    assert scene.controllers.counts() == {REVISION: 1, new: 2}
    scene.engines.num_requests["ip-of-pod-2"] = 0
    await scene.turns(8)
    assert scene.controllers.counts() == {new: 2}
    assert scene.controllers.gone == ["pod-1", "pod-2"]
    assert scene.condition("Progressing") == ("False", "Settled")


async def test_a_rollout_without_a_free_gpu_takes_an_old_replica_away_first_and_says_so() -> None:
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    scene = Scene({"replicas": 1, "resources": gpu})
    await scene.turns()
    scene.engines.num_requests["ip-of-pod-1"] = 2
    scene.controllers.max_placed = 1
    scene.edit({"replicas": 1, "resources": gpu, "engine": {"dtype": "float32"}})
    await scene.turns(6)
    old, new = (scene.status()["revision"][which] for which in ("current", "update"))
    assert scene.controllers.counts() == {old: 1, new: 0}
    assert scene.condition("Progressing") == ("True", "RollingWithoutSurge")
    assert scene.condition("CapacityAvailable") == ("False", "NoRoomToSurge")
    assert "RollingWithoutSurge" in scene.events()
    assert not scene.is_routable("pod-1")
    scene.engines.num_requests["ip-of-pod-1"] = 0
    await scene.reconciler.run(KEY)
    await scene.reconciler.run(KEY)
    assert scene.controllers.counts() == {old: 0, new: 0}
    scene.controllers.act()
    await scene.turns(6)
    assert scene.controllers.counts() == {new: 1}
    assert scene.condition("Progressing") == ("False", "Settled")
    assert scene.condition("CapacityAvailable")[0] == "True"


async def test_a_fleet_that_never_had_all_its_gpus_still_rolls_one_by_one() -> None:
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    scene = Scene({"replicas": 2, "resources": gpu})
    await scene.turns()
    scene.controllers.max_placed = 2
    scene.edit({"replicas": 5, "resources": gpu})
    await scene.turns()
    assert len(scene.controllers.pods()) == 5
    scene.edit({"replicas": 5, "resources": gpu, "engine": {"dtype": "float32"}})
    for _ in range(12):
        await scene.reconciler.run(KEY)
        scene.controllers.act()
        assert scene.num_ready() >= 1
    new = scene.status()["revision"]["update"]
    assert scene.controllers.counts() == {new: 5}
    assert scene.num_ready() == 2


async def test_suspension_drains_every_replica_at_once() -> None:
    scene = await busy(2, pod_1=1, pod_2=1)
    scene.edit({"suspend": True})
    await scene.turns()
    assert scene.status()["drainingReplicas"] == 2
    assert scene.condition("Progressing") == ("True", "Stopping")
    scene.engines.num_requests.clear()
    await scene.turns()
    assert scene.controllers.counts() == {REVISION: 0}


async def test_a_spec_that_is_turned_back_reuses_its_frozen_template() -> None:
    scene = await busy(1)
    scene.edit({"replicas": 1, "engine": {"dtype": "float32"}})
    await scene.turns(8)
    scene.edit({"replicas": 1})
    await scene.turns(8)
    assert scene.controllers.counts() == {REVISION: 1}
    numbers = {
        obj["metadata"]["labels"][names.LABEL_REVISION]: obj["revision"]
        for key, obj in scene.api.objects.items()
        if key[0] == "ControllerRevision"
    }
    assert numbers[REVISION] == max(numbers.values()) == 3


async def test_a_former_revision_is_run_again_when_it_is_asked_for() -> None:
    scene = await busy(1)
    scene.edit({"replicas": 1, "engine": {"dtype": "float32"}})
    await scene.turns(8)
    scene.edit({"replicas": 1, "engine": {"dtype": "float32"}, "rollout": {"toRevision": REVISION}})
    await scene.turns(8)
    assert scene.controllers.counts() == {REVISION: 1}
    assert scene.status()["revision"] == {"current": REVISION, "update": REVISION}
    assert scene.condition("Progressing") == ("False", "Settled")


async def test_the_last_five_former_revisions_are_kept() -> None:
    scene = await busy(1)
    for number in range(1, 9):
        scene.edit({"replicas": 1, "engine": {"maxNumSeqs": number}})
        await scene.turns(8)
    kept = [obj["revision"] for key, obj in scene.api.objects.items() if key[0] == "ControllerRevision"]
    assert sorted(kept) == [4, 5, 6, 7, 8, 9]
    assert len(scene.controllers.counts()) == 1
