"""The application on port 8001, for the operator and people on call: load, drain and the KV cache's figures.

Knows routes and the token file. Without a token file the server listens on this machine only (`AdminConfig`
sees to it).
"""

from __future__ import annotations

import os

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tidemill_engine.api.context import ApiContext
from tidemill_engine.api.handlers import CONTEXT
from tidemill_engine.api.http_errors import HttpError, UnauthorizedError
from tidemill_engine.api.load import load_document
from tidemill_engine.api.middleware import bearer_matches, error_middleware
from tidemill_engine.api.token_file import TokenFile


def _token_middleware(token_file: TokenFile | None) -> Middleware:
    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token_file is not None:
            token = token_file.token()
            if not token or not bearer_matches(request, token):
                raise UnauthorizedError("the admin token is missing or wrong", code="invalid_token")
        return await handler(request)

    return handle


def make_admin_app(context: ApiContext) -> web.Application:
    """Build the application."""
    path = context.config.admin.token_file
    token_file = TokenFile(path) if path is not None else None
    app = web.Application(
        client_max_size=64 * 1024, middlewares=[error_middleware(), _token_middleware(token_file)]
    )
    app[CONTEXT] = context
    app.router.add_get("/load", load)
    app.router.add_get("/progress", progress)
    app.router.add_get("/drain", get_drain)
    app.router.add_put("/drain", put_drain)
    app.router.add_delete("/drain", delete_drain)
    app.router.add_get("/debug/kv", debug_kv)
    return app


async def load(request: web.Request) -> web.Response:
    """Answer with what the autoscaler and the drain need to know."""
    return web.json_response(load_document(request.app[CONTEXT]))


async def progress(request: web.Request) -> web.Response:
    """Answer how much of the model is read; the container that downloads answers the same before."""
    now = request.app[CONTEXT].snapshot()
    return web.json_response(
        {
            "phase": "ready" if now.ready is not None else "loading",
            "loaded_bytes": now.loaded_bytes,
            "total_bytes": now.total_bytes,
        }
    )


async def get_drain(request: web.Request) -> web.Response:
    """Answer whether the engine drains and what is left to finish."""
    return _drain_response(request.app[CONTEXT])


async def put_drain(request: web.Request) -> web.Response:
    """Begin to drain; asking again changes nothing."""
    context = request.app[CONTEXT]
    context.drain.start("asked by PUT /drain")
    return _drain_response(context)


async def delete_drain(request: web.Request) -> web.Response:
    """Go back into service, unless the process is already told to end."""
    context = request.app[CONTEXT]
    if not context.drain.cancel():
        message = "this process has been told to end; the drain can't be cancelled"
        return HttpError(status=409, message=message, code="terminating").response()
    return _drain_response(context)


def _drain_response(context: ApiContext) -> web.Response:
    return web.json_response(
        {
            "draining": context.drain.is_draining,
            "phase": context.state.drain.value,
            "in_flight_requests": context.requests.num,
        }
    )


async def debug_kv(request: web.Request) -> web.Response:
    """Answer with the core's latest figures as they came."""
    context = request.app[CONTEXT]
    body = {"pid": os.getpid(), "ready": context.state.ready, "stats": context.state.stats}
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
