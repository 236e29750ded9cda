"""The answer to one client: begun once, written as it comes, ended so that the client sees how it ended.

Knows the client's connection. Refuses to know replicas and why an answer fails. A streamed answer may begin
before a replica has been found, with comments that keep proxies and clients from giving up; from then on
errors are events, since the status has been sent.
"""

import asyncio
import json
import logging

import aiohttp
from aiohttp import web

from tidemill_gateway import errors
from tidemill_gateway.headers import response_headers
from tidemill_gateway.observe import Record

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
KEEP_ALIVE = b": waiting for a replica\n\n"
MAX_ERROR_BYTES = 64 * 1024
SMALL_BYTES = 32 * 1024


class OneWriteResponse(web.StreamResponse):
    """A response whose head leaves together with its first chunk, as aiohttp's own whole responses do."""

    _send_headers_immediately = False


class Reply:
    """One client's answer; `may_begin_early` where the client asked for a stream of events."""

    def __init__(
        self, request: web.Request, record: Record, *, may_begin_early: bool, write_timeout_seconds: float
    ) -> None:
        self._request = request
        self._record = record
        self._may_begin_early = may_begin_early
        self._write_timeout_seconds = write_timeout_seconds
        self._response: web.StreamResponse | None = None

    async def keep_alive(self) -> None:
        """Tell a client that waits for a stream that it still waits; others hear nothing until the end."""
        if not self._may_begin_early:
            return
        response = self._response
        if response is None:
            headers = {
                "Content-Type": EVENT_STREAM,
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                "X-Request-Id": self._record.request_id,
            }
            response = await self._begin(web.StreamResponse(headers=headers))
        await self.write(response, KEEP_ALIVE)

    async def relay_head(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        """Begin the answer as the replica did, or go on with what has begun."""
        if self._response is None:
            return await self._begin(
                OneWriteResponse(
                    status=upstream.status,
                    reason=upstream.reason,
                    headers=response_headers(upstream, self._record.request_id),
                )
            )
        return self._response

    def must_become_event(self, upstream: aiohttp.ClientResponse) -> bool:
        """Say whether a replica's answer can't follow what has begun: an error after a stream's beginning."""
        return self._response is not None and upstream.content_type != EVENT_STREAM

    async def end_with_event_of(self, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        """End a stream that had begun early with the replica's plain answer as its only event."""
        response = await self.relay_head(upstream)
        content = b""
        while part := await upstream.content.read(MAX_ERROR_BYTES - len(content)):
            content += part
        try:
            document = json.loads(content)
        except ValueError:
            document = errors.error_object(errors.bad_upstream("The replica answered with no stream."))
        return await self._end(response, f"data: {json.dumps(document)}\n\n".encode())

    async def fail(self, error: errors.GatewayError) -> web.StreamResponse:
        """End with an error event what has begun; raise the error where nothing has."""
        if self._response is None:
            raise error
        self._record.cut_by = "gateway"
        return await self._end(self._response, errors.error_event(error))

    async def cut(self, *, tell_client: bool) -> None:
        """End an answer whose replica broke off, so that the client notices."""
        self._record.cut_by = "replica"
        response = self._response
        if tell_client and response is not None and response.content_type == EVENT_STREAM:
            event = errors.error_event(errors.bad_upstream("The replica broke off in mid-stream."))
            if await self.write(response, event):
                await self.write(response, None)
                self._record.cut_by = "replica"
                return
        self._abort()

    async def write(self, response: web.StreamResponse, chunk: bytes | None) -> bool:
        """Write a chunk, or the end (`None`), to the client; say whether it is still there."""
        try:
            if self._will_not_wait(chunk):
                await (response.write_eof() if chunk is None else response.write(chunk))
            else:
                async with asyncio.timeout(self._write_timeout_seconds):
                    await (response.write_eof() if chunk is None else response.write(chunk))
        except TimeoutError:
            logger.warning(
                "request %s: the client read nothing for %g s",
                self._record.request_id,
                self._write_timeout_seconds,
            )
        except (ConnectionError, aiohttp.ClientConnectionError):
            logger.info("request %s: the client has gone", self._record.request_id)
        else:
            return True
        self._record.cut_by = "client"
        self._abort()
        return False

    def _will_not_wait(self, chunk: bytes | None) -> bool:
        """Say whether a write only fills an empty buffer, so that it needs no timer."""
        transport = self._request.transport
        is_small = chunk is None or len(chunk) < SMALL_BYTES
        return transport is not None and is_small and transport.get_write_buffer_size() == 0

    async def _begin(self, response: web.StreamResponse) -> web.StreamResponse:
        self._response = response
        await response.prepare(self._request)
        return response

    async def _end(self, response: web.StreamResponse, event: bytes) -> web.StreamResponse:
        if await self.write(response, event):
            await self.write(response, None)
        return response

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
