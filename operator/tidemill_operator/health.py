"""The operator's own HTTP port: live, ready and metrics.

Knows two questions: does the process get on, and has it started. A standby is ready. Refuses to look at the
cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tidemill_operator import metrics, names


@dataclass(frozen=True, kw_only=True)
class Health:
    """The two questions, as functions."""

    is_live: Callable[[], bool]
    is_ready: Callable[[], bool]


HEALTH: Final = web.AppKey("health", Health)


def make_app(health: Health) -> web.Application:
    """Build the application."""
    app = web.Application()
    app[HEALTH] = health
    app.router.add_get(names.HEALTH_LIVE_PATH, _live)
    app.router.add_get(names.HEALTH_READY_PATH, _ready)
    app.router.add_get("/metrics", _metrics)
    return app


async def _live(request: web.Request) -> web.Response:
    return _answer(is_well=request.app[HEALTH].is_live())


async def _ready(request: web.Request) -> web.Response:
    return _answer(is_well=request.app[HEALTH].is_ready())


async def _metrics(_: web.Request) -> web.Response:
    body = generate_latest(metrics.REGISTRY)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(*, is_well: bool) -> web.Response:
    return web.Response(text="ok\n" if is_well else "failing\n", status=200 if is_well else 503)
