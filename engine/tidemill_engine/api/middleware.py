"""What happens around every handler: keys, errors as OpenAI writes them, and counting.

Knows HTTP; does not know what the handlers do.
"""

from __future__ import annotations

import asyncio
import hmac
import logging

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tidemill_engine.api.context import ApiContext
from tidemill_engine.api.http_errors import (
    DRAINING_HEADER,
    INTERNAL,
    UnauthorizedError,
    from_aiohttp,
    to_http,
)
from tidemill_engine.api.keys import ApiKeys, Bearer
from tidemill_engine.errors import EngineError

logger = logging.getLogger(__name__)


FORMER_TOKEN_HEADER = "x-tidemill-former-token"  # noqa: S105 - a header's name
BEARER = web.RequestKey("bearer", Bearer)
"""Where a request keeps whose key it brought."""


def bearer_token(request: web.Request) -> str:
    """Return the bearer token of a request, empty where there is none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def bearer_matches(request: web.Request, secret: str) -> bool:
    """Compare the bearer token of a request in constant time."""
    given = bearer_token(request).encode(errors="surrogateescape")
    return hmac.compare_digest(given, secret.encode())


def error_middleware() -> Middleware:
    """Turn every error into OpenAI's object; an unforeseen one is logged and costs its own request."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except EngineError as error:
            return to_http(error).response()
        except web.HTTPException as error:
            return from_aiohttp(error, request.path).response()
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception:
            logger.exception("a request to %s failed inside", request.path)
            return INTERNAL.response()

    return handle


def key_middleware(keys: ApiKeys) -> Middleware:
    """Ask for an API key under /v1/ where any is set, and note whose it is."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/"):
            bearer = keys.bearer(bearer_token(request), request.headers.get(FORMER_TOKEN_HEADER, ""))
            if bearer is None:
                raise UnauthorizedError(
                    "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'"
                )
            request[BEARER] = bearer
        return await handler(request)

    return handle


def counting_middleware(context: ApiContext) -> Middleware:
    """Count requests in progress for the drain, and answers and lost clients for the metrics."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        is_generating = request.method == "POST"
        context.requests.enter(is_generating)
        try:
            response = await handler(request)
        except (ConnectionResetError, asyncio.CancelledError):
            context.metrics.on_disconnect()
            raise
        finally:
            context.requests.leave(is_generating)
        if is_generating:
            context.requests.note(response.status, is_retried=DRAINING_HEADER in response.headers)
        context.metrics.on_http(route, response.status)
        return response

    return handle
