"""The application on port 8000: OpenAI's endpoints, health, metrics and the page.

Knows routes. Does not know how the core is run.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from tidemill_engine.api import handlers
from tidemill_engine.api.context import ApiContext
from tidemill_engine.api.handlers import CONTEXT
from tidemill_engine.api.middleware import counting_middleware, error_middleware, key_middleware
from tidemill_engine.api.state import Verdict

PAGE_FILE = Path(__file__).parent / "static" / "index.html"
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
LOAD_HEADER = "x-tidemill-load"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_api_app(context: ApiContext) -> web.Application:
    """Build the application; run it with `handler_cancellation=True`: a lost client ends its request."""
    app = web.Application(
        client_max_size=context.config.http.max_body_bytes,
        middlewares=[
            counting_middleware(context),
            error_middleware(),
            key_middleware(context.keys),
        ],
    )
    app[CONTEXT] = context
    app.on_response_prepare.append(_add_load)
    app.router.add_get("/", page)
    app.router.add_post("/v1/completions", handlers.completions)
    app.router.add_post("/v1/chat/completions", handlers.chat_completions)
    app.router.add_get("/v1/models", handlers.list_models)
    app.router.add_get("/v1/models/{model:.+}", handlers.get_model)
    app.router.add_get("/health", live)
    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", metrics)
    return app


async def _add_load(request: web.Request, response: web.StreamResponse) -> None:
    """Tell in the head of every answer how busy this engine is; the gateway reads it and takes it off."""
    response.headers[LOAD_HEADER] = request.app[CONTEXT].load_header()


async def page(_request: web.Request) -> web.Response:
    """Answer with the page where a person can type."""
    return web.Response(
        body=PAGE_FILE.read_bytes(), content_type="text/html", charset="utf-8", headers=PAGE_HEADERS
    )


async def live(request: web.Request) -> web.Response:
    """Answer whether the core makes progress; a hung or dead core is 503."""
    return _probe(request.app[CONTEXT].liveness())


async def ready(request: web.Request) -> web.Response:
    """Answer whether new requests should be sent here."""
    return _probe(request.app[CONTEXT].state.readiness())


async def metrics(request: web.Request) -> web.Response:
    """Answer with every metric in the Prometheus text format."""
    body = request.app[CONTEXT].metrics.exposition()
    return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})


def _probe(verdict: Verdict) -> web.Response:
    status = "ok" if verdict.is_ok else "unavailable"
    return web.json_response(
        {"status": status, "reason": verdict.reason}, status=200 if verdict.is_ok else 503
    )
