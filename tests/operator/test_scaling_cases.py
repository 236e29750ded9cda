"""What broke other autoscalers, played through whole runs: reconciler, keeper and the real decision."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import cast

import pytest

from operator_builders import FakeClock, make_service
from operator_fakes import FakeApi, Object, make_reconciler
from scaling_stage import AUTO, FakeFleet, Stage, make_stage
from tidemill_operator import cluster, names
from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.fleet.autoscaler import Autoscaler
from tidemill_operator.fleet.scraper import Scraper

pytestmark = pytest.mark.slow


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    staged = make_stage(AUTO)
    yield staged
    await staged.autoscaler.close()


async def test_load_brings_replicas_and_its_end_takes_them_away_with_reasons_told(stage: Stage) -> None:
    await stage.reconcile()
    assert stage.replicas == 1
    stage.fleet.usual_waiting = 10
    await stage.pass_time(20)
    assert stage.replicas > 2
    assert "ScaledUp" in stage.told()
    stage.fleet.usual_waiting = 0
    await stage.pass_time(400)
    assert stage.replicas == 1
    assert "ScaledDown" in stage.told()
    assert stage.status["scaling"]["history"][0]["to"] == 1


@pytest.mark.parametrize("replicas", [1, 5])
async def test_when_every_scrape_fails_replicas_are_held_and_it_is_said(stage: Stage, replicas: int) -> None:
    scaling = {**AUTO["scaling"], "minReplicas": replicas}
    stage.api.store({**stage.service, "spec": {**stage.service["spec"], "scaling": scaling}})
    await stage.pass_time(20)
    stage.api.store({**stage.service, "spec": {**stage.service["spec"], "scaling": AUTO["scaling"]}})
    stage.fleet.usual_waiting = stage.fleet.held = None
    await stage.pass_time(300)
    assert stage.replicas == replicas
    assert stage.condition("MetricsAvailable")[0] == "False"
    assert "MetricsMissing" in stage.told()
    stage.fleet.usual_waiting = stage.fleet.held = 0
    await stage.pass_time(400)
    assert stage.condition("MetricsAvailable")[0] == "True"
    assert stage.replicas == 1


async def test_a_service_at_zero_stays_there_while_no_gateway_answers(stage: Stage) -> None:
    zero = {**AUTO["scaling"], "minReplicas": 0, "scaleToZero": {"idleAfter": "30s"}}
    stage.api.store({**stage.service, "spec": {**stage.service["spec"], "scaling": zero}})
    await stage.pass_time(200)
    assert (stage.replicas, stage.condition("Ready")) == (0, ("True", "ScaledToZero"))
    stage.fleet.held = None
    await stage.pass_time(60)
    assert stage.replicas == 0
    assert stage.condition("MetricsAvailable")[0] == "False"
    stage.fleet.held = 3
    await stage.pass_time(5)
    assert stage.replicas >= 1


async def test_a_new_service_that_may_go_to_zero_is_started_once_first(stage: Stage) -> None:
    zero = {**AUTO["scaling"], "minReplicas": 0, "scaleToZero": {"idleAfter": "30s"}}
    stage.api.store({**stage.service, "spec": {**stage.service["spec"], "scaling": zero}})
    stage.controllers.max_placed = 0
    await stage.pass_time(120)
    assert stage.replicas == 1, "it was never ready, so nothing is known of it"
    stage.controllers.max_placed = 1000
    await stage.pass_time(200)
    assert stage.replicas == 0


async def test_a_silent_gateway_keeps_the_last_replica(stage: Stage) -> None:
    zero = {**AUTO["scaling"], "minReplicas": 0, "scaleToZero": {"idleAfter": "30s"}}
    stage.api.store({**stage.service, "spec": {**stage.service["spec"], "scaling": zero}})
    stage.fleet.held = None
    await stage.pass_time(300)
    assert stage.replicas == 1


async def test_a_pod_that_only_bears_the_labels_has_no_vote(stage: Stage) -> None:
    await stage.reconcile()
    ours = next(pod for name, pod in stage.controllers.pods().items() if name.startswith("pod-"))
    forged = copy.deepcopy(ours)
    owners = [{"uid": "uid-of-someone-else", "controller": True}]
    forged["metadata"] = {
        **forged["metadata"],
        "name": "forged",
        "uid": "uid-forged",
        "ownerReferences": owners,
    }
    stage.api.store(forged)
    stage.fleet.waiting["forged"] = 10_000
    await stage.pass_time(30)
    assert "forged" not in stage.fleet.asked
    assert stage.replicas == 1


def with_a_pod(api: FakeApi, namespace: str, name: str) -> Object:
    """Store a service with one replica, which is called after both its names."""
    uid = f"uid-of-{namespace}-{name}"
    service = owner = api.store(make_service(AUTO, name=name, namespace=namespace, uid=uid))
    for kind in ("Deployment", "ReplicaSet", "Pod"):
        metadata = {
            "namespace": namespace,
            "name": f"{namespace}-{name}",
            "labels": {names.LABEL_SERVICE: name, names.LABEL_REVISION: "r"},
            "ownerReferences": [{"uid": owner["metadata"]["uid"], "controller": True}],
        }
        ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        spec = {"replicas": 1, "nodeName": "n"}
        owner = api.store({"kind": kind, "metadata": metadata, "spec": spec, "status": ready})
    return service


async def test_services_beside_each_other_and_of_one_name_are_each_scaled_by_their_own_pods() -> None:
    clock, api = FakeClock(), FakeApi()
    waiting = {("prod", "chat"): 1, ("prod", "other"): 40, ("stage", "chat"): 700}
    fleet = FakeFleet(clock=clock, waiting={"-".join(key): count for key, count in waiting.items()})
    autoscaler = Autoscaler(
        scraper=cast("Scraper", fleet), decide=desired_replicas, ask_reconcile=lambda _: None, clock=clock
    )
    services = [with_a_pod(api, *key) for key in waiting]
    seen = make_reconciler(api).cluster
    for service in services:
        autoscaler.look(service, await seen.observe(service))
    await clock.advance(10)
    documents = {key: autoscaler.document(*key) or {} for key in waiting}
    await autoscaler.close()
    assert {key: document["readyReplicas"] for key, document in documents.items()} == dict.fromkeys(
        waiting, 1
    )
    assert {key: document["queueLength"] for key, document in documents.items()} == waiting
    assert documents["prod", "chat"]["desiredReplicas"] == 1 < documents["prod", "other"]["desiredReplicas"]


async def test_an_operator_killed_in_mid_cooldown_waits_as_long_as_it_would_have(stage: Stage) -> None:
    await stage.reconcile()
    stage.fleet.usual_waiting = 10
    await stage.pass_time(60)
    high = stage.replicas
    stage.fleet.usual_waiting = 0
    await stage.pass_time(20)
    assert stage.replicas == high
    await stage.autoscaler.close()
    stage.start_operator()
    await stage.pass_time(20)
    assert stage.replicas == high, "the window of 60 s has not passed"
    await stage.pass_time(400)
    assert stage.replicas == 1


async def test_a_status_that_is_lost_is_rebuilt_and_replicas_are_held(stage: Stage) -> None:
    await stage.reconcile()
    stage.fleet.usual_waiting = 10
    await stage.pass_time(60)
    high = stage.replicas
    await stage.autoscaler.close()
    stage.api.store({key: value for key, value in stage.service.items() if key != "status"})
    stage.start_operator()
    await stage.reconcile()
    assert stage.replicas == high
    await stage.pass_time(10)
    assert stage.condition("ScalingActive")[0] == "True"


async def test_spec_edits_and_decisions_in_the_same_moment_never_make_replicas_flap(stage: Stage) -> None:
    await stage.pass_time(20)
    stage.fleet.usual_waiting = 6
    await stage.pass_time(60)
    stage.counts.clear()
    for number in range(100):
        spec = {**stage.service["spec"], "disruption": {"maxUnavailable": 1 + number % 2}}
        stage.api.store({**stage.service, "spec": spec})
        await stage.pass_time(5)
    turns = [b - a for a, b in zip(stage.counts, stage.counts[1:], strict=False) if a != b]
    ups, downs = [t for t in turns if t > 0], [t for t in turns if t < 0]
    assert not (ups and downs), turns


async def test_the_autoscaler_never_writes_spec(stage: Stage) -> None:
    before = copy.deepcopy(stage.service["spec"])
    stage.fleet.usual_waiting = 10
    await stage.pass_time(60)
    assert stage.replicas > 1
    assert stage.service["spec"] == before


async def test_a_steady_service_is_hardly_ever_written(stage: Stage) -> None:
    await stage.pass_time(120)
    before = stage.api.num_writes
    await stage.pass_time(600)
    assert stage.api.num_writes - before <= 4


async def test_advisory_says_what_it_would_do_and_does_nothing(stage: Stage) -> None:
    scaling = {**AUTO["scaling"], "mode": "Advisory"}
    stage.api.store({**stage.service, "spec": {**stage.service["spec"], "replicas": 1, "scaling": scaling}})
    await stage.pass_time(10)
    stage.fleet.usual_waiting = 10
    await stage.pass_time(60)
    assert stage.replicas == 1
    assert stage.status["scaling"]["desiredReplicas"] > 1
    assert stage.status["desiredReplicas"] == 1
    assert "WouldScale" in stage.told()
    assert not {"ScaledUp", "ScaledDown"} & stage.told()


def rights() -> dict[str, set[str]]:
    """Read the rights that the operator has; the chart's are the same, which a test of the chart compares."""
    words = [line.partition("(")[0].split() for line in (cluster.__doc__ or "").splitlines()]
    return {found[1]: set(found[2:]) for found in words if len(found) >= 3 and "get" in found}


def test_scaling_needs_no_right_to_list_nodes() -> None:
    assert "pods" in rights()
    assert "nodes" not in rights()


def test_nothing_of_the_operator_may_write_the_spec_that_gitops_tools_keep() -> None:
    assert rights()["inferenceservices"] == {"get", "list", "watch"}
