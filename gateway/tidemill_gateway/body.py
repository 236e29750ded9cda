"""Reads a request's body within its bounds.

Knows sizes, patience and JSON. Refuses to know what the document asks for (`ask` does).
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tidemill_gateway import errors
from tidemill_gateway.ask import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyLimits:
    """The bounds on a body."""

    max_bytes: int = 8 * 1024 * 1024
    timeout_seconds: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBody:
    """A body and the JSON object in it; a multipart body (audio, files) is not looked into."""

    content: bytes
    document: Document
    model: str | None


NO_BODY = ReadBody(content=b"", document={}, model=None)


async def read_body(request: web.Request, limits: BodyLimits) -> ReadBody:
    """Read a body; raise GatewayError when it is too large, too slow or no JSON object."""
    if (request.content_length or 0) > limits.max_bytes:
        raise errors.body_too_large(limits.max_bytes)
    try:
        if request.content.is_eof():
            content = await request.read()  # it is all there already
        else:
            async with asyncio.timeout(limits.timeout_seconds):
                content = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise errors.body_too_large(limits.max_bytes) from error
    except TimeoutError as error:
        raise errors.body_too_slow(limits.timeout_seconds) from error
    if request.content_type.startswith("multipart/"):
        return ReadBody(content=content, document={}, model=None)
    document = _parse(content)
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise errors.GatewayError(
            status=400, message="`model` is not a string.", code="invalid_type", param="model"
        )
    return ReadBody(content=content, document=document, model=model)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise errors.bad_json(reason) from error
    if not isinstance(document, dict):
        raise errors.bad_json("it is another kind of JSON value")
    return document
