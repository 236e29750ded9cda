"""Which headers travel on, in both directions.

Knows what concerns only one connection, what is private to Tidemill, and what a proxy adds. Refuses to know
bodies and replicas.
"""

from collections.abc import Mapping
from types import MappingProxyType

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

NOTHING: Mapping[str, str] = MappingProxyType({})
PRIVATE_PREFIX = "x-tidemill-"
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# aiohttp sets these itself, or has already done what they ask for (bodies arrive here decompressed).
REPLACED_IN_REQUESTS = frozenset(
    {"host", "content-length", "content-encoding", "expect", "x-request-id", "x-forwarded-host"}
)
DROPPED_IN_REQUESTS = HOP_BY_HOP | REPLACED_IN_REQUESTS


def request_headers(
    request: web.Request, request_id: str, set_here: Mapping[str, str] = NOTHING
) -> CIMultiDict[str]:
    """Give the headers that the replica gets: the client's, less what concerned only its connection to us.

    What is `set_here` takes the place of what the client sent under the same name.
    """
    headers = _kept(request.headers, DROPPED_IN_REQUESTS)
    headers["X-Request-Id"] = request_id
    headers["X-Forwarded-Host"] = request.host
    if request.remote:
        before = headers.get("X-Forwarded-For")
        headers["X-Forwarded-For"] = f"{before}, {request.remote}" if before else request.remote
    headers.setdefault("X-Forwarded-Proto", request.scheme)
    for name, value in set_here.items():
        headers[name] = value
    return headers


def response_headers(upstream: aiohttp.ClientResponse, request_id: str) -> CIMultiDict[str]:
    """Give the headers that the client gets: the replica's, less what concerned only its connection to us."""
    headers = _kept(upstream.headers, HOP_BY_HOP)
    headers["X-Request-Id"] = request_id
    if upstream.content_type == "text/event-stream":
        # nginx in front of the gateway would otherwise collect tokens before it passes them on.
        headers.setdefault("X-Accel-Buffering", "no")
    return headers


def _kept(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    """Give the headers that travel on: none that is dropped, named by `Connection` or private to us."""
    if "Connection" in headers:
        dropped = dropped | _named_by_connection(headers.getall("Connection"))
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lowered = name.lower()
        if lowered not in dropped and not lowered.startswith(PRIVATE_PREFIX):
            kept.add(name, value)
    return kept


def _named_by_connection(values: list[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for value in values for name in value.split(","))
