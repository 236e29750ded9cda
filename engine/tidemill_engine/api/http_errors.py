"""Turns every error into OpenAI's error object and its HTTP status; the only place that knows both.

Knows the error classes and aiohttp's own HTTP exceptions. An unexpected exception becomes a 500 that says
nothing of the inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from tidemill_engine.api.state import LOADING_RETRY_AFTER_SECONDS, RequestNotTaken
from tidemill_engine.errors import (
    ContextLengthExceeded,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RequestTooLarge,
)

DRAINING_HEADER = "x-tidemill-draining"


class UnauthorizedError(EngineError):
    """The key or token is missing or wrong."""


class UnsupportedMediaTypeError(EngineError):
    """The body is not JSON by its Content-Type."""


class RequestTimeoutError(EngineError):
    """The body did not arrive in time."""


@dataclass(frozen=True, kw_only=True)
class HttpError:
    """One error as HTTP says it."""

    status: int
    message: str
    error_type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return OpenAI's error object as JSON."""
        error = {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> web.Response:
        """Return the whole answer."""
        return web.Response(
            body=self.body(), status=self.status, content_type="application/json", headers=self.headers
        )


_STATUSES: tuple[tuple[type[EngineError], int, str, str | None], ...] = (
    (ContextLengthExceeded, 400, "invalid_request_error", "context_length_exceeded"),
    (InvalidRequest, 400, "invalid_request_error", None),
    (UnauthorizedError, 401, "authentication_error", "invalid_api_key"),
    (ModelNotFound, 404, "invalid_request_error", "model_not_found"),
    (RequestTimeoutError, 408, "invalid_request_error", "request_timeout"),
    (RequestTooLarge, 413, "invalid_request_error", "request_too_large"),
    (UnsupportedMediaTypeError, 415, "invalid_request_error", "unsupported_media_type"),
    (Overloaded, 429, "rate_limit_error", "overloaded"),
    (EngineUnavailable, 503, "service_unavailable", None),
)
_UNLISTED = (EngineError, 500, "internal_error", "internal_error")
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def to_http(error: EngineError) -> HttpError:
    """Translate one of our errors; an unlisted one is our fault and a 500."""
    matching = (row for row in _STATUSES if isinstance(error, row[0]))
    _, status, error_type, code = next(matching, _UNLISTED)
    return HttpError(
        status=status,
        message=error.message,
        error_type=error_type,
        param=error.param,
        code=error.code or code,
        headers=_headers(error),
    )


def _headers(error: EngineError) -> dict[str, str]:
    if isinstance(error, Overloaded):
        return {"Retry-After": str(max(math.ceil(error.retry_after_seconds), 1))}
    if isinstance(error, RequestNotTaken):
        seconds = 1 if error.code == "draining" else LOADING_RETRY_AFTER_SECONDS
        return {"Retry-After": str(seconds), DRAINING_HEADER: "true"}
    if isinstance(error, EngineUnavailable):
        return {"Retry-After": str(LOADING_RETRY_AFTER_SECONDS)}
    if isinstance(error, UnauthorizedError):
        return {"WWW-Authenticate": "Bearer"}
    return {}


def from_aiohttp(error: web.HTTPException, path: str) -> HttpError:
    """Translate what aiohttp raises by itself: unknown paths, wrong methods, bodies over the limit."""
    messages = {
        404: f"there is nothing at {path}",
        405: f"{path} does not take this method",
        413: "the body is longer than this server reads",
    }
    headers = {key: value for key, value in error.headers.items() if key == "Allow"}
    return HttpError(
        status=error.status,
        message=messages.get(error.status, error.reason),
        code=_HTTP_CODES.get(error.status),
        headers=headers,
    )


INTERNAL = HttpError(
    status=500,
    message="something went wrong inside the engine",
    error_type="internal_error",
    code="internal_error",
)
