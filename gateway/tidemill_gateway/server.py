"""The gateway's public side: reads a request, asks `route` whose it is, and hands it to the proxy.

Knows the order of the steps and the bounds on bodies. Refuses to know how routing, choice and relaying work.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from aiohttp import web

from tidemill_gateway import errors
from tidemill_gateway.activation import ActivationHooks, Activator, StatusWriter
from tidemill_gateway.ask import read_ask
from tidemill_gateway.body import NO_BODY, BodyLimits, ReadBody, read_body
from tidemill_gateway.clocks import Clocks
from tidemill_gateway.demand import DemandBook
from tidemill_gateway.fair_queue import Share
from tidemill_gateway.ledger import Ledger
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.observe import RECORD, Handler, Record, make_middleware
from tidemill_gateway.places import able
from tidemill_gateway.proxy import Call, Proxy, ProxyConfig, make_session
from tidemill_gateway.reply import Reply
from tidemill_gateway.route import (
    MODELS_PATH,
    ModelList,
    Redirect,
    RouteRequest,
    Target,
    model_object,
    models_in,
    needs_model,
    route,
    unknown_model,
)
from tidemill_gateway.state import ClusterState
from tidemill_gateway.waiting_room import Visit, WaitingConfig, WaitingRoom

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """The public side's bounds, and the name under which this gateway counts."""

    max_body_bytes: int = 8 * MIB
    body_timeout_seconds: float = 60.0
    max_in_flight: int = 4096
    suspect_seconds: float = 5.0
    name: str = ""
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    waiting: WaitingConfig = field(default_factory=WaitingConfig)

    @property
    def body(self) -> BodyLimits:
        """The bounds on a body."""
        return BodyLimits(max_bytes=self.max_body_bytes, timeout_seconds=self.body_timeout_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a gateway is given from outside: clocks, who writes statuses, and where its turns begin."""

    clocks: Clocks = field(default_factory=Clocks)
    writer: StatusWriter | None = None
    first_turn: int = 0


class Traffic:
    """How many requests are being worked on, and whether the gateway is going away."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request until the block ends."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no request is being worked on."""
        await self._idle.wait()


CONFIG = web.AppKey("config", ServerConfig)
STATE = web.AppKey("state", ClusterState)
PROXY = web.AppKey("proxy", Proxy)
TRAFFIC = web.AppKey("traffic", Traffic)
DEMAND = web.AppKey("demand", DemandBook)
WAITING = web.AppKey("waiting", WaitingRoom)
CLOCKS = web.AppKey("clocks", Clocks)


def make_app(
    *,
    config: ServerConfig,
    state: ClusterState,
    metrics: GatewayMetrics,
    around: Surroundings = Surroundings(),
) -> web.Application:
    """Build the public application; run it with `handler_cancellation=True`."""
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[make_middleware(metrics, around.clocks.monotonic), _count_traffic],
    )
    app[CONFIG] = config
    app[STATE] = state
    app[TRAFFIC] = Traffic()
    app[CLOCKS] = around.clocks
    app[DEMAND] = DemandBook(gateway=config.name, started=around.clocks.wall())
    app.cleanup_ctx.append(_open(state, metrics, around))
    app.router.add_route("*", "/{path:.*}", handle)
    return app


def _open(
    state: ClusterState, metrics: GatewayMetrics, around: Surroundings
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Give what makes the parts that live as long as the application runs."""

    async def open_parts(app: web.Application) -> AsyncIterator[None]:
        config, clocks = app[CONFIG], around.clocks
        hooks = ActivationHooks(world=lambda: state.world, wall=clocks.wall)
        activator = Activator(around.writer, metrics, hooks)
        waiting = app[WAITING] = WaitingRoom(
            config=config.waiting, world=lambda: state.world, activator=activator, demand=app[DEMAND]
        )
        state.subscribe(waiting.on_change)
        ledger = Ledger(
            clock=clocks.monotonic, suspect_seconds=config.suspect_seconds, first_turn=around.first_turn
        )
        async with make_session(config.proxy) as session:
            app[PROXY] = Proxy(
                config=config.proxy,
                session=session,
                world=lambda: state.world,
                ledger=ledger,
                waiting=waiting,
                metrics=metrics,
            )
            yield
        await activator.close()

    return open_parts


async def handle(request: web.Request) -> web.StreamResponse:
    """Answer any request."""
    state, record = request.app[STATE], request[RECORD]
    asked = RouteRequest(method=request.method, path=request.rel_url.raw_path, host=request.host)
    body = NO_BODY
    if needs_model(asked, state.claims):
        body = await read_body(request, request.app[CONFIG].body)
        asked = RouteRequest(method=asked.method, path=asked.path, host=asked.host, model=body.model)
    routed = route(asked, state.claims)
    if isinstance(routed, Target):
        return await _forward(request, routed, body, record)
    if isinstance(routed, Redirect):
        return web.Response(status=308, headers={"Location": routed.location})
    if not state.is_complete:
        raise errors.unavailable("The gateway is starting and does not know every service yet.", "starting")
    if isinstance(routed, ModelList):
        return _list_models(routed, state)
    raise errors.from_refusal(routed)


async def _forward(
    request: web.Request, target: Target, body: ReadBody, record: Record
) -> web.StreamResponse:
    service, app = target.service, request.app
    record.namespace, record.service = service.namespace, service.name
    if request.method != "POST":
        return await _ask_for_page(request, target, record)
    ask = read_ask(body.document)
    app[DEMAND].arrive(service.key, ask.num_prompt_tokens, app[CLOCKS].wall())
    reply = _make_reply(request, record, may_begin_early=ask.is_stream)
    visit = Visit(
        service=service,
        share=Share(tenant="", cost=ask.num_prompt_tokens),
        num_prompt_tokens=ask.num_prompt_tokens,
        num_bytes=len(body.content),
        keep_alive=reply.keep_alive,
    )
    call = Call(
        service=service,
        path=target.path,
        query=request.rel_url.raw_query_string,
        body=body.content,
        record=record,
        ask=ask,
        visit=visit,
    )
    try:
        async with app[WAITING].admitted(visit):
            with app[DEMAND].in_flight(service.key, ask.num_prompt_tokens) as flight:
                record.flight = flight
                return await app[PROXY].forward(request, call, reply)
    except errors.GatewayError as error:
        return await reply.fail(error)


async def _ask_for_page(request: web.Request, target: Target, record: Record) -> web.StreamResponse:
    """Pass on what costs no tokens: it wakes nobody and waits for nobody."""
    app, service = request.app, target.service
    if target.path == MODELS_PATH and not able(app[STATE].world.replicas(service)):
        served = [model_object(name, service) for name in service.served_names]
        return web.json_response({"object": "list", "data": served})
    query = request.rel_url.raw_query_string
    call = Call(service=service, path=target.path, query=query, body=None, record=record)
    return await app[PROXY].forward(request, call, _make_reply(request, record, may_begin_early=False))


def _make_reply(request: web.Request, record: Record, *, may_begin_early: bool) -> Reply:
    seconds = request.app[CONFIG].proxy.write_timeout_seconds
    return Reply(request, record, may_begin_early=may_begin_early, write_timeout_seconds=seconds)


def _list_models(asked: ModelList, state: ClusterState) -> web.Response:
    if asked.model is None:
        return web.json_response({"object": "list", "data": models_in(state.claims)})
    name = unquote(asked.model)
    service = state.claims.by_model.get(name)
    if service is None:
        raise errors.from_refusal(unknown_model(name, tuple(state.claims.by_model)))
    return web.json_response(model_object(name, service))


@web.middleware
async def _count_traffic(request: web.Request, handler: Handler) -> web.StreamResponse:
    traffic, most = request.app[TRAFFIC], request.app[CONFIG].max_in_flight
    if traffic.in_flight >= most:
        raise errors.overloaded(most)
    with traffic.counted():
        response = await handler(request)
        if traffic.is_closing and not response.prepared:
            response.force_close()
        return response
