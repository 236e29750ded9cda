"""Reads a request's body within its bounds, and those of all bodies that are in memory together.

Knows sizes, patience and JSON. Refuses to know what the document asks for (`ask` does).
"""

import asyncio
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tidemill_gateway import errors
from tidemill_gateway.ask import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyLimits:
    """The bounds on a body."""

    max_bytes: int = 8 * 1024 * 1024
    timeout_seconds: float = 60.0


class HeldBodies:
    """The bytes of all bodies that are in memory."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0

    def hold(self) -> "Held":
        """Count one body while the block of what this gives lasts."""
        return Held(self)


class Held:
    """One body's bytes, as they come."""

    __slots__ = ("_all", "num_bytes")

    def __init__(self, bodies: HeldBodies) -> None:
        self._all = bodies
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._all.num_bytes -= self.num_bytes

    def add(self, num_bytes: int) -> None:
        """Count what has come; raise GatewayError where all together are too much."""
        self.num_bytes += num_bytes
        self._all.num_bytes += num_bytes
        if self._all.num_bytes > self._all.max_bytes:
            raise errors.bodies_full()


@dataclass(kw_only=True, slots=True)
class ReadBody:
    """A body and the JSON object in it; a multipart body (audio, files) is not looked into."""

    content: bytes
    model: str | None
    document: Document | None = None

    def take_document(self) -> Document:
        """Give the object, once: it may take many times the memory of the body, which goes on for minutes."""
        document, self.document = self.document, None
        return {} if document is None else document


def no_body() -> ReadBody:
    """Give what there is of a request without a body."""
    return ReadBody(content=b"", model=None)


async def read_body(request: web.Request, limits: BodyLimits, held: Held) -> ReadBody:
    """Read a body; raise GatewayError when it is too large, too slow or no JSON object."""
    if (request.content_length or 0) > limits.max_bytes:
        raise errors.body_too_large(limits.max_bytes)
    try:
        if request.content.is_eof():
            content = await _read(request, limits, held)  # it is all there already
        else:
            async with asyncio.timeout(limits.timeout_seconds):
                content = await _read(request, limits, held)
    except TimeoutError as error:
        raise errors.body_too_slow(limits.timeout_seconds) from error
    if request.content_type.startswith("multipart/"):
        return ReadBody(content=content, model=None)
    document = _parse(content)
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise errors.GatewayError(
            status=400, message="`model` is not a string.", code="invalid_type", param="model"
        )
    return ReadBody(content=content, document=document, model=model)


async def _read(request: web.Request, limits: BodyLimits, held: Held) -> bytes:
    body = bytearray()
    while part := await request.content.readany():
        held.add(len(part))
        body += part
        if len(body) > limits.max_bytes:
            raise errors.body_too_large(limits.max_bytes)
    return bytes(body)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise errors.bad_json(reason) from error
    if not isinstance(document, dict):
        raise errors.bad_json("it is another kind of JSON value")
    return document
