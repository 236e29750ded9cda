"""`GET /scaling/{namespace}/{name}` on the operator's port: the figures for those who keep KEDA or an HPA.

Knows that the operator that acts has them, and that a standby fetches them from it, so that any operator pod
may be asked. Refuses to know figures. No secret stands in them: who reaches the port may read them, as
`/metrics`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp import web

logger = logging.getLogger(__name__)

Documents = Callable[[str, str], Mapping[str, Any] | None]
LeaderUrl = Callable[[], Awaitable[str | None]]

PATH: Final = "/scaling/{namespace}/{name}"
FORWARD_SECONDS: Final = 2.0
FORWARDED_HEADER: Final = "X-Tidemill-Forwarded"


@dataclass(frozen=True, kw_only=True)
class _Source:
    documents: Documents
    leader_url: LeaderUrl


_SOURCE: Final = web.AppKey("scaling_source", _Source)


def add_scaling_routes(app: web.Application, documents: Documents, leader_url: LeaderUrl) -> None:
    """Serve the figures; `leader_url` gives the base URL of the operator that acts, None in that one."""
    app[_SOURCE] = _Source(documents=documents, leader_url=leader_url)
    app.router.add_get(PATH, _figures)


async def _figures(request: web.Request) -> web.Response:
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    source = request.app[_SOURCE]
    document = source.documents(namespace, name)
    if document is not None:
        return web.json_response(dict(document))
    if FORWARDED_HEADER not in request.headers:
        url = await source.leader_url()
        if url is not None:
            return await _forward(f"{url}/scaling/{namespace}/{name}")
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
                body=await answer.read(), status=answer.status, content_type="application/json"
            )
    except (TimeoutError, aiohttp.ClientError) as error:
        logger.warning("the operator that acts does not answer at %s: %s", url, error)
        return web.json_response({"error": "the operator that acts does not answer"}, status=503)
