"""Writes server-sent events to one client, never waiting for it longer than a bound.

Knows SSE framing and aiohttp's response; does not know what the events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
_SMALL_BYTES = 16 * 1024
"""Well under what a transport buffers before a write waits for its reader (64 KiB)."""
DONE = b"data: [DONE]\n\n"


class ClientTooSlowError(ConnectionResetError):
    """The client has not read for so long that its stream is given up."""


def event(payload: bytes) -> bytes:
    """Frame one JSON payload, which holds no line break."""
    return b"data: " + payload + b"\n\n"


class EventStream:
    """One event stream. Headers go out with the first event, so an error before it has its own status."""

    def __init__(self, request: web.Request, *, write_timeout_seconds: float) -> None:
        self._request = request
        self._write_timeout_seconds = write_timeout_seconds
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def is_open(self) -> bool:
        """Say whether headers have been sent."""
        return self.response.prepared

    async def send(self, objects: Iterable[dict[str, Any]]) -> None:
        """Write some events in one go."""
        await self.send_raw(b"".join(event(msgspec.json.encode(item)) for item in objects))

    async def send_raw(self, data: bytes) -> None:
        """Write bytes that are already framed."""
        if self.response.prepared and self._can_not_block(data):
            await self.response.write(data)
            return
        try:
            async with asyncio.timeout(self._write_timeout_seconds):
                if not self.response.prepared:
                    await self.response.prepare(self._request)
                await self.response.write(data)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ClientTooSlowError(f"nothing was read for {self._write_timeout_seconds:g} s") from None

    def _can_not_block(self, data: bytes) -> bool:
        """Say whether all was read so far and this fits into the transport, so that no timer is needed."""
        transport = self._request.transport
        return len(data) <= _SMALL_BYTES and transport is not None and transport.get_write_buffer_size() == 0

    async def close(self) -> None:
        """End the stream in order."""
        await self.response.write_eof()
