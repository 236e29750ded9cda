"""The watch against a small API server on loopback."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.builders import chain_of, make_pod, make_service
from gateway.fake_api_server import FakeApiServer, run_fake_api_server
from tidemill_gateway.api_error import ApiError
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Kind
from tidemill_gateway.state import ClusterState
from tidemill_gateway.watch import Home, Watch, WatchTiming, sources, split_lines
from tidemill_gateway.world import World


@dataclass
class Watching:
    server: FakeApiServer
    state: ClusterState
    metrics: GatewayMetrics
    delays: list[float]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop turn until the world is as expected; the test's timeout is the bound."""
        while not condition():  # noqa: ASYNC110 - a world has no event of its own
            await asyncio.sleep(0)

    async def until_world(self, condition: Callable[[World], bool]) -> None:
        await self.until(lambda: condition(self.state.world))

    def restarts(self, resource: str, reason: str) -> float:
        labels = {"resource": resource, "reason": reason}
        return self.metrics.registry.get_sample_value("tidemill_gateway_watch_restarts_total", labels) or 0.0


@asynccontextmanager
async def watching(
    *kinds: Kind,
    prepare: Callable[[FakeApiServer], Any] = lambda server: None,
    silence_seconds: float = 60.0,
    namespace: str | None = None,
) -> AsyncIterator[Watching]:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        await asyncio.sleep(0)

    async with run_fake_api_server() as (server, api):
        prepare(server)
        everything = sources((namespace,) if namespace else (), Home(namespace="home"))
        watched = [source for source in everything if source.kind in kinds]
        state = ClusterState(source.label for source in watched)
        metrics = GatewayMetrics()
        timing = WatchTiming(silence_seconds=silence_seconds, sleep=sleep, jitter=lambda: 1.0)
        tasks = [
            asyncio.ensure_future(
                Watch(source=source, api=api, state=state, metrics=metrics, timing=timing).run()
            )
            for source in watched
        ]
        try:
            yield Watching(server=server, state=state, metrics=metrics, delays=delays)
            assert not any(task.done() for task in tasks), "a watch has ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def preload(kind: Kind, *objects: dict[str, Any]) -> Callable[[FakeApiServer], None]:
    def prepare(server: FakeApiServer) -> None:
        server.objects[kind.value] = {raw["metadata"]["uid"]: raw for raw in objects}

    return prepare


async def test_lists_in_pages_and_then_follows_changes() -> None:
    pods = [make_pod(f"p{i}") for i in range(5)]
    async with watching(Kind.PODS, prepare=preload(Kind.PODS, *pods)) as view:
        view.server.page_size = 2
        await view.until_world(lambda world: len(world.pods) == 5)
        assert view.state.is_complete
        assert len(view.server.lists) == 3
        await view.server.put(Kind.PODS, make_pod("p9"))
        await view.until_world(lambda world: "pod-default-p9" in world.pods)
        await view.server.put(Kind.PODS, make_pod("p9", ready=False))
        await view.until_world(lambda world: not world.pods["pod-default-p9"].ready)
        await view.server.delete(Kind.PODS, "pod-default-p9")
        await view.until_world(lambda world: "pod-default-p9" not in world.pods)
        assert len(view.server.watches) == 1


async def test_all_kinds_together_give_a_service_its_replicas() -> None:
    async with watching(*Kind) as view:
        deployment, replica_set = chain_of()
        await view.server.put(Kind.SERVICES, make_service())
        await view.server.put(Kind.PODS, make_pod())
        await view.server.put(Kind.DEPLOYMENTS, deployment)
        await view.server.put(Kind.REPLICA_SETS, replica_set)
        await view.until_world(
            lambda world: any(world.replicas(service) for service in world.services.values())
        )
        assert view.state.claims.by_model["chat"].uid == "service-default-chat"


async def test_only_labelled_objects_and_only_the_metadata_of_links_are_asked_for() -> None:
    async with watching(*Kind, namespace="team") as view:
        await view.until(lambda: len(view.server.watches) == 6)
        asked = {found["plural"]: found for found in view.server.lists}
        assert asked["pods"]["path"] == "/api/v1/namespaces/team/pods"
        assert asked["pods"]["labelSelector"] == "serving.tidemill.dev/service"
        assert "labelSelector" not in asked["inferenceservices"]
        assert "PartialObjectMetadataList" in asked["deployments"]["accept"]
        assert asked["gateways"]["path"] == "/api/v1/namespaces/home/pods"
        assert asked["keys"]["path"] == "/api/v1/namespaces/home/secrets"
        assert asked["keys"]["fieldSelector"] == "metadata.name=tidemill-gateway-keys"
        assert all(found["allowWatchBookmarks"] == "true" for found in view.server.watches)


async def test_a_version_that_is_gone_leads_to_a_new_list() -> None:
    async with watching(Kind.PODS, prepare=preload(Kind.PODS, make_pod("old"))) as view:
        await view.until(lambda: view.server.num_open(Kind.PODS) == 1)
        view.server.is_silent = True
        await view.server.put(Kind.PODS, make_pod("new"))
        await view.server.delete(Kind.PODS, "pod-default-old")
        view.server.compact()
        view.server.is_silent = False
        view.server.cut(Kind.PODS)
        await view.until_world(lambda world: set(world.pods) == {"pod-default-new"})
        assert view.restarts("pods", "gone") == 1
        assert len(view.server.lists) == 2


async def test_a_cut_watch_goes_on_from_the_last_version_without_a_list() -> None:
    async with watching(Kind.PODS) as view:
        await view.until(lambda: view.server.num_open(Kind.PODS) == 1)
        await view.server.put(Kind.PODS, make_pod("first"))
        await view.until_world(lambda world: len(world.pods) == 1)
        version = view.server.version
        view.server.cut(Kind.PODS)
        await view.server.put(Kind.PODS, make_pod("second"))
        await view.until_world(lambda world: len(world.pods) == 2)
        assert len(view.server.lists) == 1
        assert view.server.watches[-1]["resourceVersion"] == str(version)


async def test_a_bookmark_moves_the_version_on() -> None:
    async with watching(Kind.PODS) as view:
        await view.until(lambda: view.server.num_open(Kind.PODS) == 1)
        await view.server.put(Kind.SERVICES, make_service())  # versions are shared by all kinds
        await view.server.bookmark(Kind.PODS)
        await view.until(lambda: view.server.delivered.get("pods") == view.server.version)
        view.server.compact()
        await view.server.finish(Kind.PODS)
        await view.until(lambda: len(view.server.watches) == 2)
        assert view.server.watches[-1]["resourceVersion"] == str(view.server.version)
        await view.server.put(Kind.PODS, make_pod())
        await view.until_world(lambda world: len(world.pods) == 1)
        assert view.restarts("pods", "gone") == 0
        assert len(view.server.lists) == 1


async def test_a_silent_watch_is_established_anew() -> None:
    async with watching(Kind.PODS, silence_seconds=0.05) as view:
        await view.until(lambda: len(view.server.watches) >= 3)
        assert view.restarts("pods", "error") >= 2
        assert len(view.server.lists) == 1


async def test_refusals_wait_longer_each_time_and_keep_what_is_known() -> None:
    async with watching(Kind.PODS, prepare=preload(Kind.PODS, make_pod())) as view:
        await view.until(lambda: view.server.num_open(Kind.PODS) == 1)
        view.server.refuse_with = (403, "pods is forbidden")
        view.server.cut(Kind.PODS)
        await view.until(lambda: len(view.delays) >= 12)
        assert view.delays[:4] == [0.2, 0.4, 0.8, 1.6]
        assert max(view.delays) == 5.0
        assert len(view.state.world.pods) == 1
        view.server.refuse_with = None
        await view.server.put(Kind.PODS, make_pod("later"))
        await view.until_world(lambda world: len(world.pods) == 2)


async def test_a_gateway_without_its_first_lists_knows_what_is_missing() -> None:
    def refuse(server: FakeApiServer) -> None:
        server.refuse_with = (404, "the server could not find the requested resource")

    async with watching(Kind.SERVICES, prepare=refuse) as view:
        await view.until(lambda: len(view.delays) >= 2)
        assert view.state.missing == ("inferenceservices",)
        view.server.refuse_with = None
        await view.until(lambda: view.state.is_complete)


@pytest.mark.parametrize(
    "bad",
    [
        {"metadata": {"name": "no-uid"}},
        {"metadata": {"uid": "x", "name": "bad-port", "namespace": "d"}, "spec": {"containers": 5}},
        {"metadata": {"uid": "x", "name": "bad-status", "namespace": "d"}, "status": {"conditions": [1]}},
    ],
)
async def test_an_object_that_can_not_be_read_is_passed_over(bad: dict[str, Any]) -> None:
    async with watching(Kind.PODS) as view:
        await view.until(lambda: view.server.num_open(Kind.PODS) == 1)
        await view.server.send(Kind.PODS, "ADDED", bad)
        await view.server.put(Kind.PODS, make_pod("good"))
        await view.until_world(lambda world: set(world.pods) == {"pod-default-good"})
        assert len(view.server.watches) == 1


def test_without_namespaces_every_kind_is_watched_once_in_the_whole_cluster() -> None:
    in_cluster = ["inferenceservices", "pods", "replicasets", "deployments"]
    assert [source.label for source in sources(())] == in_cluster
    assert len(sources(("a", "b"))) == 8
    at_home = [source.label for source in sources((), Home(namespace="home"))]
    assert at_home == [*in_cluster, "gateways in home", "keys in home"]


async def chunks_of(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield chunk


async def test_lines_are_put_together_from_chunks() -> None:
    lines = [line async for line in split_lines(chunks_of(b"a", b"b\n\nc\nd", b"", b"e\n"))]
    assert lines == [b"ab", b"c", b"de"]


async def test_a_cut_inside_an_event_is_an_error() -> None:
    with pytest.raises(ApiError, match="cut inside an event"):
        [line async for line in split_lines(chunks_of(b"a\nb"))]
