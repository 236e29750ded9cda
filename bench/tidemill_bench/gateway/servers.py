"""The processes that are measured: a stand-in for an engine, a bare proxy, and the gateway itself.

Each is started as `python -m tidemill_bench.gateway.servers ROLE ...`, writes `PORT n` and serves until it is
killed. The bare proxy is the least that a proxy in aiohttp can do: read the body, ask one upstream over a
kept connection, and write what comes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import aiohttp
from aiohttp import web

from tidemill_gateway import event_loop
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Kind, Link, Owner, Pod, Service
from tidemill_gateway.parts import ServerConfig, Surroundings
from tidemill_gateway.process import listen, start_app
from tidemill_gateway.server import make_app
from tidemill_gateway.service_spec import Routing
from tidemill_gateway.state import ClusterState
from tidemill_gateway.world import World, put
from tidemill_operator import names

ANSWER = json.dumps(
    {
        "id": "cmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello " * 30}}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 30, "total_tokens": 230},
    }
).encode()
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" hello"}}]}\n\n'
FLOOD = EVENT * 500


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer at once; with `stream`, an event every `pause` seconds, or as many as the reader takes."""
    asked = json.loads(await request.read())
    if not asked.get("stream"):
        return web.Response(body=ANSWER, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    while True:
        await response.write(FLOOD if asked.get("flood") else EVENT)
        await asyncio.sleep(asked.get("pause", 0))


def make_engine() -> web.Application:
    """Build the stand-in for an engine."""
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    app.router.add_get("/{path:.*}", lambda _: asyncio.sleep(0, web.Response()))
    return app


def make_bare_proxy(target: str) -> web.Application:
    """Build the bare proxy."""
    session_key = web.AppKey("session", aiohttp.ClientSession)

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with request.app[session_key].post(
            f"http://{target}{request.rel_url}", data=body, headers={"Content-Type": request.content_type}
        ) as upstream:
            headers = {"Content-Type": upstream.headers["Content-Type"]}
            response = web.StreamResponse(status=upstream.status, headers=headers)
            await response.prepare(request)
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    async def open_session(app: web.Application):  # type: ignore[no-untyped-def]
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            app[session_key] = session
            yield

    app = web.Application()
    app.cleanup_ctx.append(open_session)
    app.router.add_post("/{path:.*}", forward)
    return app


def make_world(targets: list[str], strategy: str) -> World:
    """Build the world of one service, `chat` in `bench`, whose replicas are at these addresses."""
    service = Service(
        uid="service",
        namespace="bench",
        name="chat",
        created="2026-01-01T00:00:00Z",
        served_names=("chat",),
        hosts=(),
        routing=Routing(strategy=strategy),
    )
    world = put(World(), Kind.SERVICES, service)
    owner = Owner(uid="service", kind=names.KIND, group=names.GROUP)
    world = put(world, Kind.DEPLOYMENTS, Link(uid="deployment", namespace="bench", owner=owner))
    owner = Owner(uid="deployment", kind="Deployment", group="apps")
    world = put(world, Kind.REPLICA_SETS, Link(uid="set", namespace="bench", owner=owner))
    for number, target in enumerate(targets):
        address, _, port = target.rpartition(":")
        pod = Pod(
            uid=f"pod-{number}",
            namespace="bench",
            name=f"chat-{number}",
            owner=Owner(uid="set", kind="ReplicaSet", group="apps"),
            address=address,
            port=int(port),
            revision="",
            ready=True,
            routable=True,
            terminating=False,
        )
        world = put(world, Kind.PODS, pod)
    return world


def make_gateway(targets: list[str], strategy: str) -> web.Application:
    """Build the gateway over a world that stands still."""
    state = ClusterState(())
    state.update(make_world(targets, strategy))
    return make_app(
        config=ServerConfig(max_in_flight=100_000),
        state=state,
        metrics=GatewayMetrics(),
        around=Surroundings(),
    )


async def serve(app: web.Application) -> None:
    """Serve on a free port of loopback until killed."""
    port, _ = await listen(await start_app(app), "127.0.0.1", 0)
    sys.stdout.write(f"PORT {port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve in one role."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("engine", "bare", "gateway"))
    parser.add_argument("--like-gateway", action="store_true", help="on the gateway's event loop")
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--strategy", default="PrefixAware")
    args = parser.parse_args()
    if args.role == "gateway":
        event_loop.run(serve(make_gateway(args.target, args.strategy)))
        return
    app = make_engine() if args.role == "engine" else make_bare_proxy(args.target[0])
    run = event_loop.run if args.like_gateway else asyncio.run
    run(serve(app))


if __name__ == "__main__":
    main()
