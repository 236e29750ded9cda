"""The gateway's public side: reads a request, asks `route` whose it is, and hands it on.

Knows the order of the steps. Refuses to know how routing, waiting and relaying work.
"""

from dataclasses import replace
from urllib.parse import unquote

from aiohttp import web

from tidemill_gateway import errors
from tidemill_gateway.body import HeldBodies, ReadBody, no_body, read_body
from tidemill_gateway.demand import DemandBook
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.observe import RECORD, Handler, make_middleware
from tidemill_gateway.parts import (
    AROUND,
    BODIES,
    CONFIG,
    DEMAND,
    LIMITS,
    METRICS,
    STATE,
    TRAFFIC,
    ServerConfig,
    Surroundings,
    open_parts,
)
from tidemill_gateway.route import (
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
from tidemill_gateway.tenant_limits import TenantLimits
from tidemill_gateway.traffic import Traffic
from tidemill_gateway.work import answer_target


def make_app(
    *,
    config: ServerConfig,
    state: ClusterState,
    metrics: GatewayMetrics,
    around: Surroundings,
) -> web.Application:
    """Build the public application; run it with `handler_cancellation=True`."""
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[make_middleware(metrics, around.clocks.monotonic), _count_traffic],
    )
    app[CONFIG] = config
    app[STATE] = state
    app[TRAFFIC] = Traffic()
    app[METRICS] = metrics
    app[AROUND] = around
    app[LIMITS] = TenantLimits()
    app[BODIES] = HeldBodies(config.max_bodies_bytes)
    app[DEMAND] = DemandBook(gateway=config.name, started=around.clocks.wall())
    app.cleanup_ctx.append(open_parts)
    app.on_response_prepare.append(_close_when_leaving)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


async def handle(request: web.Request) -> web.StreamResponse:
    """Answer any request."""
    asked = RouteRequest(method=request.method, path=request.rel_url.raw_path, host=request.host)
    if not needs_model(asked, request.app[STATE].claims):
        return await _answer(request, asked, no_body())
    with request.app[BODIES].hold() as held:
        body = await read_body(request, request.app[CONFIG].body, held)
        return await _answer(request, replace(asked, model=body.model), body)


async def _answer(request: web.Request, asked: RouteRequest, body: ReadBody) -> web.StreamResponse:
    state = request.app[STATE]
    routed = route(asked, state.claims)
    if isinstance(routed, Target):
        return await answer_target(request, routed, body, request[RECORD])
    if isinstance(routed, Redirect):
        return web.Response(status=308, headers={"Location": routed.location})
    if not state.is_complete:
        raise errors.unavailable("The gateway is starting and does not know every service yet.", "starting")
    if isinstance(routed, ModelList):
        return _list_models(routed, state)
    raise errors.from_refusal(routed)


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
    with traffic:
        return await handler(request)


async def _close_when_leaving(request: web.Request, response: web.StreamResponse) -> None:
    """Let clients that keep connections open find another pod for their next request."""
    if request.app[TRAFFIC].is_closing:
        response.headers["Connection"] = "close"
        response.force_close()
