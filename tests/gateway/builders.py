"""Builders of what the gateway's tests need: API objects, worlds, running gateways and upstreams."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from tidemill_gateway.activation import StatusWriter
from tidemill_gateway.clocks import Clocks
from tidemill_gateway.demand import DemandBook
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Kind, Pod, Service, parse
from tidemill_gateway.parts import DEMAND, TRAFFIC, WAITING, ServerConfig, Surroundings
from tidemill_gateway.process import listen, start_app
from tidemill_gateway.server import make_app
from tidemill_gateway.state import ClusterState
from tidemill_gateway.traffic import Traffic
from tidemill_gateway.waiting_room import WaitingConfig, WaitingRoom
from tidemill_gateway.world import World, put
from tidemill_operator import names

Raw = dict[str, Any]
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
CHAT_PATH = "/v1/chat/completions"
IMPATIENT = ServerConfig(waiting=WaitingConfig(hold_seconds=0))


def make_service(name: str = "chat", namespace: str = "default", **changes: Any) -> Raw:
    """Build an InferenceService; `changes`: uid, created, served, host, status, and fields of the spec."""
    spec: Raw = {"model": {"uri": "sim://test"}, "replicas": 1}
    spec |= {
        key: changes[key]
        for key in ("replicas", "scaling", "routing", "rollout", "suspend")
        if key in changes
    }
    if "served" in changes:
        spec["model"]["servedNames"] = changes["served"]
    if "host" in changes:
        spec["routing"] = {**spec.get("routing", {}), "ingress": {"host": changes["host"]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": changes.get("uid", f"service-{namespace}-{name}"),
            "creationTimestamp": changes.get("created", "2026-01-02T03:04:05Z"),
            "resourceVersion": "1",
        },
        "spec": spec,
        "status": changes.get("status", {}),
    }


def owned_by(api_version: str, kind: str, uid: str) -> list[Raw]:
    """Write the owner reference of a controller."""
    return [{"apiVersion": api_version, "kind": kind, "name": "any", "uid": uid, "controller": True}]


def make_link(uid: str, namespace: str = "default", owners: list[Raw] | None = None) -> Raw:
    """Build a ReplicaSet or Deployment, which differ by their owners alone."""
    metadata = {"name": uid, "namespace": namespace, "uid": uid, "resourceVersion": "1"}
    return {"metadata": {**metadata, "ownerReferences": owners or []}}


def make_pod(name: str = "chat-1", namespace: str = "default", **changes: Any) -> Raw:
    """Build a pod; `changes`: owners, address, port, ready, routable, revision, terminating, version."""
    metadata: Raw = {
        "name": name,
        "namespace": namespace,
        "uid": f"pod-{namespace}-{name}",
        "resourceVersion": changes.get("version", "1"),
        "labels": {
            names.LABEL_SERVICE: "chat",
            names.LABEL_REVISION: changes.get("revision", "rev1"),
            names.LABEL_ROUTABLE: changes.get("routable", names.ROUTABLE_YES),
        },
        "ownerReferences": changes.get("owners", owned_by("apps/v1", "ReplicaSet", f"rs-{namespace}-chat")),
    }
    if changes.get("terminating"):
        metadata["deletionTimestamp"] = "2026-01-02T04:00:00Z"
    port = {"name": names.ENGINE_PORT_NAME, "containerPort": changes.get("port", names.ENGINE_PORT)}
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": names.ENGINE_CONTAINER, "ports": [port]}]},
        "status": {
            "podIP": changes.get("address", "127.0.0.1"),
            "conditions": [{"type": "Ready", "status": "True" if changes.get("ready", True) else "False"}],
        },
    }


def chain_of(
    name: str = "chat", namespace: str = "default", service_uid: str | None = None
) -> tuple[Raw, Raw]:
    """Build the Deployment and the ReplicaSet between a service and its pods."""
    service = service_uid or f"service-{namespace}-{name}"
    deployment_uid, replica_set_uid = f"deploy-{namespace}-{name}", f"rs-{namespace}-{name}"
    return (
        make_link(deployment_uid, namespace, owned_by(names.API_VERSION, names.KIND, service)),
        make_link(replica_set_uid, namespace, owned_by("apps/v1", "Deployment", deployment_uid)),
    )


def make_world(services: Iterable[Raw] = (), pods: Iterable[Raw] = ()) -> World:
    """Build a world in which each service has an unbroken owner chain for its pods."""
    world = World()
    for service in services:
        metadata = service["metadata"]
        deployment, replica_set = chain_of(metadata["name"], metadata["namespace"], metadata["uid"])
        world = put(world, Kind.SERVICES, parse(Kind.SERVICES, service))
        world = put(world, Kind.DEPLOYMENTS, parse(Kind.DEPLOYMENTS, deployment))
        world = put(world, Kind.REPLICA_SETS, parse(Kind.REPLICA_SETS, replica_set))
    for pod in pods:
        world = put(world, Kind.PODS, parse(Kind.PODS, pod))
    return world


def parsed_service(name: str = "chat", namespace: str = "default", **changes: Any) -> Service:
    """Build a service as the world holds it."""
    service = parse(Kind.SERVICES, make_service(name, namespace, **changes))
    assert isinstance(service, Service)
    return service


def parsed_pod(name: str = "chat-1", namespace: str = "default", **changes: Any) -> Pod:
    """Build a pod as the world holds it."""
    pod = parse(Kind.PODS, make_pod(name, namespace, **changes))
    assert isinstance(pod, Pod)
    return pod


@dataclass(kw_only=True)
class RunningGateway:
    """A gateway that listens on loopback."""

    port: int
    state: ClusterState
    metrics: GatewayMetrics
    traffic: Traffic
    demand: DemandBook
    waiting: WaitingRoom
    client: aiohttp.ClientSession

    def url(self, path: str) -> str:
        """Give the URL of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def post(self, path: str, **arguments: Any) -> Any:
        """Begin a POST; used with `async with`."""
        return self.client.post(self.url(path), **arguments)

    def get(self, path: str, **arguments: Any) -> Any:
        """Begin a GET; used with `async with`."""
        return self.client.get(self.url(path), **arguments)


@asynccontextmanager
async def run_gateway(
    world: World, config: ServerConfig | None = None, writer: StatusWriter | None = None
) -> AsyncIterator[RunningGateway]:
    """Run the public side of a gateway over a given world."""
    state, metrics = ClusterState(()), GatewayMetrics()
    state.update(world)
    around = Surroundings(writer=writer, clocks=Clocks())
    app = make_app(config=config or IMPATIENT, state=state, metrics=metrics, around=around)
    runner = await start_app(app)
    port, _ = await listen(runner, "127.0.0.1", 0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        yield RunningGateway(
            port=port,
            state=state,
            metrics=metrics,
            traffic=app[TRAFFIC],
            demand=app[DEMAND],
            waiting=app[WAITING],
            client=client,
        )
    await runner.cleanup()


@asynccontextmanager
async def run_upstream(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """Run an engine's stand-in that answers everything by one handler; give its port."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    port, _ = await listen(runner, "127.0.0.1", 0)
    yield port
    await runner.cleanup()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until a condition holds: for what has no event of its own."""
    while not condition():  # noqa: ASYNC110 - that is what this function is for
        await asyncio.sleep(0)


def one_service(*ports: int) -> World:
    """Build the world of one service with a replica on each port."""
    return make_world([make_service()], [make_pod(f"chat-{i}", port=port) for i, port in enumerate(ports)])


def counted(gateway: RunningGateway, name: str, **labels: str) -> float:
    """Read a metric; 0 where it was never counted."""
    return gateway.metrics.registry.get_sample_value(name, labels) or 0.0


async def answer(request: web.Request) -> web.Response:
    """Answer with what was asked."""
    return web.json_response(
        {"path": request.path, "query": request.rel_url.raw_query_string, "body": await request.text()}
    )
