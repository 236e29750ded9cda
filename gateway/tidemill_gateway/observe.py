"""What is written down about each request: its id, one log line, its metrics.

Knows what a request came to. Refuses to know keys, queries, bodies and most headers: none
of them is ever logged.
"""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware

from tidemill_gateway import errors
from tidemill_gateway.demand import Flight
from tidemill_gateway.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CLIENT_LEFT = 499


@dataclass(kw_only=True, slots=True)
class Record:
    """What is known of one request so far."""

    request_id: str
    clock: Callable[[], float]
    arrived: float
    namespace: str = ""
    service: str = ""
    tenant: str = ""
    replica: str = ""
    retries: int = 0
    cut_by: str = ""
    first_byte: float | None = None
    flight: Flight | None = None

    def mark_first_byte(self) -> None:
        """Note when the replica's first byte came."""
        if self.first_byte is None:
            self.first_byte = self.clock()

    def count_output(self, num_tokens: int) -> None:
        """Count output tokens as they pass."""
        if self.flight is not None:
            self.flight.add_output(num_tokens)

    def settle_output(self, num_tokens: int) -> None:
        """Correct the count of output tokens at the answer's end."""
        if self.flight is not None:
            self.flight.add_output(num_tokens - self.flight.num_output_tokens)


RECORD = web.RequestKey("record", Record)


def make_middleware(metrics: GatewayMetrics, clock: Callable[[], float]) -> Middleware:
    """Make the outermost middleware: ids, errors as OpenAI's object, log and metrics."""

    @web.middleware
    async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
        record = Record(request_id=_request_id(request), clock=clock, arrived=clock())
        request[RECORD] = record
        metrics.traffic.in_flight.inc()
        code = CLIENT_LEFT
        try:
            response = await _answer(request, handler, record)
            code = response.status
        finally:
            metrics.traffic.in_flight.dec()
            _write_down(request, record, code, metrics)
        return response

    return observe


async def _answer(request: web.Request, handler: Handler, record: Record) -> web.StreamResponse:
    try:
        return await handler(request)
    except errors.GatewayError as error:
        if error.status >= 500:
            logger.info("request %s: %s: %s", record.request_id, error, error.message)
        else:
            logger.info("request %s: %s", record.request_id, error)
        response = errors.error_response(error)
    except asyncio.CancelledError:
        raise
    except Exception:
        logger.exception("request %s: failed inside the gateway", record.request_id)
        response = errors.error_response(errors.internal(record.request_id))
    response.headers["X-Request-Id"] = record.request_id
    return response


def _write_down(request: web.Request, record: Record, code: int, metrics: GatewayMetrics) -> None:
    now = record.clock()
    ended = metrics.ended(record.namespace, record.service, code)
    ended.requests.inc()
    ended.duration.observe(now - record.arrived)
    if record.cut_by:
        metrics.traffic.streams_cut.labels(record.namespace, record.service, record.cut_by).inc()
    first_byte = "-"
    if record.first_byte is not None:
        ended.first_byte.observe(record.first_byte - record.arrived)
        first_byte = f"{record.first_byte - record.arrived:.3f}"
    logger.info(
        "request %s: %s %s -> %s/%s tenant=%s replica=%s code=%d retries=%d first_byte=%s total=%.3f "
        "cut_by=%s",
        record.request_id,
        request.method,
        request.rel_url.raw_path[:200],
        record.namespace or "-",
        record.service or "-",
        record.tenant or "-",
        record.replica or "-",
        code,
        record.retries,
        first_byte,
        now - record.arrived,
        record.cut_by or "-",
    )


def _request_id(request: web.Request) -> str:
    given = request.headers.get("X-Request-Id")
    return given if given and REQUEST_ID_PATTERN.fullmatch(given) else os.urandom(16).hex()
