"""`GET /scaling/{namespace}/{name}` on the operator's port: the figures for those who keep KEDA or an HPA.

Beside them `.../recording` has the loads of the last hours for `tidemill-bench replay`. Knows that the
operator that acts has them, and that a standby fetches them from it, so that any operator pod may be asked.
Refuses to know figures. No secret stands in them: who reaches the port may read them, as `/metrics`.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
from aiohttp import web

logger = logging.getLogger(__name__)

LeaderUrl = Callable[[], Awaitable[str | None]]

PATH: Final = "/scaling/{namespace}/{name}"
RECORDING_PATH: Final = f"{PATH}/recording"
LINES_TYPE: Final = "application/x-ndjson"
FORWARD_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=2.0)
FORWARDED_HEADER: Final = "X-Tidemill-Forwarded"


class Known(Protocol):
    """What the operator that acts knows of its services; None: nothing of this one."""

    def document(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Give the latest figures of one service as JSON."""

    def recording(self, namespace: str, name: str) -> Iterator[bytes] | None:
        """Give the loads of the last hours, a line of JSON each, in parts."""


@dataclass(frozen=True, kw_only=True)
class _Source:
    known: Known
    leader_url: LeaderUrl


_SOURCE: Final = web.AppKey("scaling_source", _Source)


def add_scaling_routes(app: web.Application, known: Known, leader_url: LeaderUrl) -> None:
    """Serve what is known; `leader_url` gives the base URL of the operator that acts, None in that one."""
    app[_SOURCE] = _Source(known=known, leader_url=leader_url)
    app.router.add_get(PATH, _figures, allow_head=False)
    app.router.add_get(RECORDING_PATH, _recording, allow_head=False)


async def _figures(request: web.Request) -> web.StreamResponse:
    document = request.app[_SOURCE].known.document(*_names(request))
    return web.json_response(dict(document)) if document is not None else await _elsewhere(request)


async def _recording(request: web.Request) -> web.StreamResponse:
    parts = request.app[_SOURCE].known.recording(*_names(request))
    if parts is None:
        return await _elsewhere(request)
    response = web.StreamResponse(headers={"Content-Type": LINES_TYPE})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    """Ask the operator that acts, or say that nothing is known."""
    if FORWARDED_HEADER not in request.headers:
        url = await request.app[_SOURCE].leader_url()
        if url is not None:
            return await _forward(request, f"{url}{request.rel_url.raw_path}")
    namespace, name = _names(request)
    message = (
        f"no figures of InferenceService {namespace}/{name}: it has no spec.scaling, or was not read yet"
    )
    return web.json_response({"error": message}, status=404)


async def _forward(request: web.Request, url: str) -> web.StreamResponse:
    """Pass on the answer of the operator that acts, as it comes."""
    response = None
    try:
        async with (
            aiohttp.ClientSession(timeout=FORWARD_TIMEOUT) as session,
            session.get(url, headers={FORWARDED_HEADER: "1"}) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response
    except (TimeoutError, aiohttp.ClientError) as error:
        logger.warning("the operator that acts does not answer at %s: %s", url, error)
        if response is not None:
            raise  # half of an answer must not look like all of it
        return web.json_response({"error": "the operator that acts does not answer"}, status=503)
