"""`GET /scaling/{namespace}/{name}` on the operator's port: the figures for those who keep KEDA or an HPA.

Beside them `.../recording` has the loads of the last hours for `tidemill-bench replay`. Knows that the
operator that acts has them, and that a standby fetches them from it, so that any operator pod may be asked.
Refuses to know figures. No secret stands in them: who reaches the port may read them, as `/metrics`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
from aiohttp import web

logger = logging.getLogger(__name__)

LeaderUrl = Callable[[], Awaitable[str | None]]

PATH: Final = "/scaling/{namespace}/{name}"
RECORDING_PATH: Final = f"{PATH}/recording"
LINES_TYPE: Final = "application/x-ndjson"
FORWARD_SECONDS: Final = 2.0
FORWARDED_HEADER: Final = "X-Tidemill-Forwarded"


class Known(Protocol):
    """What the operator that acts knows of its services; None: nothing of this one."""

    def document(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Give the latest figures of one service as JSON."""

    def recording(self, namespace: str, name: str) -> str | None:
        """Give the loads of the last hours, a line of JSON each."""


@dataclass(frozen=True, kw_only=True)
class _Source:
    known: Known
    leader_url: LeaderUrl


_SOURCE: Final = web.AppKey("scaling_source", _Source)


def add_scaling_routes(app: web.Application, known: Known, leader_url: LeaderUrl) -> None:
    """Serve what is known; `leader_url` gives the base URL of the operator that acts, None in that one."""
    app[_SOURCE] = _Source(known=known, leader_url=leader_url)
    app.router.add_get(PATH, _figures)
    app.router.add_get(RECORDING_PATH, _recording)


async def _figures(request: web.Request) -> web.Response:
    document = request.app[_SOURCE].known.document(*_names(request))
    return web.json_response(dict(document)) if document is not None else await _elsewhere(request)


async def _recording(request: web.Request) -> web.Response:
    lines = request.app[_SOURCE].known.recording(*_names(request))
    if lines is None:
        return await _elsewhere(request)
    return web.Response(text=lines, content_type=LINES_TYPE)


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


async def _elsewhere(request: web.Request) -> web.Response:
    """Ask the operator that acts, or say that nothing is known."""
    if FORWARDED_HEADER not in request.headers:
        url = await request.app[_SOURCE].leader_url()
        if url is not None:
            return await _forward(f"{url}{request.rel_url.raw_path}")
    namespace, name = _names(request)
    message = (
        f"no figures of InferenceService {namespace}/{name}: it has no spec.scaling, or was not read yet"
    )
    return web.json_response({"error": message}, status=404)


async def _forward(url: str) -> web.Response:
    """Give the answer of the operator that acts."""
    timeout = aiohttp.ClientTimeout(total=FORWARD_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, headers={FORWARDED_HEADER: "1"}) as answer,
        ):
            return web.Response(
                body=await answer.read(), status=answer.status, content_type=answer.content_type
            )
    except (TimeoutError, aiohttp.ClientError) as error:
        logger.warning("the operator that acts does not answer at %s: %s", url, error)
        return web.json_response({"error": "the operator that acts does not answer"}, status=503)
