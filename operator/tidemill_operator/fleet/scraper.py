"""Asks engines and gateways for their figures: a bounded number at once, each with a time limit.

Knows connections, addresses and which of its two documents an engine has. Refuses to know services and what
figures are for: whoever asks gets, per target, figures or the reason why there are none. Nothing is kept but
connections and, for a minute, which engines have no `/load`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from tidemill_operator import metrics, names
from tidemill_operator.answer_body import read_body
from tidemill_operator.autoscaling.model import EngineFigures, GatewayDemand
from tidemill_operator.fleet.figures import (
    MissingFiguresError,
    demand_of_services,
    engine_from_load,
    engine_from_metrics,
)

logger = logging.getLogger(__name__)

MAX_CONCURRENT: Final = 64
TIMEOUT_SECONDS: Final = 2.0
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
KEEP_ALIVE_SECONDS: Final = 75.0
METRICS_SECONDS: Final = 60.0
"""So long an engine without `/load` is asked for its `/metrics` alone; one that started may have it then."""
SOURCE_LOAD: Final = "load"
SOURCE_METRICS: Final = "metrics"
SOURCE_DEMAND: Final = "demand"


@dataclass(frozen=True, kw_only=True)
class EngineTarget:
    """One engine pod, known by its UID: another pod at its address is another target.

    `tokens`: of its admin port, the one of now first; who does not know it yet is offered the next.
    """

    uid: str
    name: str
    ip: str
    tokens: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class GatewayTarget:
    """One gateway pod."""

    name: str
    ip: str


@dataclass(frozen=True, kw_only=True)
class EngineAnswer:
    """What one engine said, or why nothing is known of it."""

    figures: EngineFigures | None = None
    missing_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class GatewayAnswer:
    """What one gateway said of all its services, or why nothing is known of it."""

    started: float = 0.0
    services: Mapping[str, GatewayDemand] | None = None
    missing_reason: str = ""


class _NoSuchDocumentError(MissingFiguresError):
    """The engine does not serve this document at all; it may serve the other."""


class _RefusedError(MissingFiguresError):
    """The engine wants another token."""


class Scraper:
    """One pool of kept connections for everything that is asked."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.time,
        ports: tuple[int, int, int] = (
            names.ENGINE_ADMIN_PORT,
            names.ENGINE_PORT,
            names.GATEWAY_ADMIN_PORT,
        ),
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._now = now
        self._admin_port, self._engine_port, self._gateway_port = ports
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._session: aiohttp.ClientSession | None = None
        self._speaks_metrics: dict[str, float] = {}
        """Until when (by `now`) an engine, by its UID, is not asked for `/load` again."""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def engine(self, target: EngineTarget) -> EngineAnswer:
        """Ask one engine: by `/load`, or by `/metrics` where it has none."""
        try:
            return EngineAnswer(figures=await self._figures(target))
        except MissingFiguresError as error:
            return EngineAnswer(missing_reason=str(error))

    async def gateway(self, target: GatewayTarget) -> GatewayAnswer:
        """Ask one gateway for the demand of all services."""
        url = f"http://{_host(target.ip)}:{self._gateway_port}/demand"
        try:
            body = await self._get(url, SOURCE_DEMAND)
            started, services = demand_of_services(body, self._now())
        except MissingFiguresError as error:
            return GatewayAnswer(missing_reason=str(error))
        return GatewayAnswer(started=started, services=services)

    async def _figures(self, target: EngineTarget) -> EngineFigures:
        host, until = _host(target.ip), self._speaks_metrics.get(target.uid)
        if until is not None and self._now() < until:
            return await self._from_metrics(host)
        try:
            return engine_from_load(await self._get_load(host, target.tokens), self._now())
        except _NoSuchDocumentError as error:
            no_load: MissingFiguresError = error
        except MissingFiguresError as error:
            if until is None or isinstance(error, _RefusedError):
                raise
            no_load = error  # a port that has turned silent since is no reason to read nothing
        try:
            figures = await self._from_metrics(host)
        except MissingFiguresError as error:
            raise MissingFiguresError(f"{no_load}; {error}") from error
        self._note_metrics(target)
        return figures

    def _note_metrics(self, target: EngineTarget) -> None:
        """Remember that an engine has no `/load`, and forget those of which that is long ago."""
        now = self._now()
        if target.uid not in self._speaks_metrics:
            logger.info("pod %s has no /load and is read by its /metrics", target.name)
        kept = {uid: until for uid, until in self._speaks_metrics.items() if now < until + METRICS_SECONDS}
        self._speaks_metrics = {**kept, target.uid: now + METRICS_SECONDS}

    async def _get_load(self, host: str, tokens: tuple[str, ...]) -> bytes:
        url = f"http://{host}:{self._admin_port}/load"
        for token in tokens[:-1]:
            with contextlib.suppress(_RefusedError):
                return await self._get(url, SOURCE_LOAD, token)
        return await self._get(url, SOURCE_LOAD, tokens[-1] if tokens else "")

    async def _from_metrics(self, host: str) -> EngineFigures:
        body = await self._get(f"http://{host}:{self._engine_port}/metrics", SOURCE_METRICS)
        return engine_from_metrics(body.decode(errors="replace"), self._now())

    async def _get(self, url: str, source: str, token: str = "") -> bytes:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        result = "failed"
        started = time.perf_counter()
        try:
            async with (
                self._slots,
                self._opened().get(
                    url, headers=headers, timeout=self._timeout, allow_redirects=False
                ) as answer,
            ):
                body = await _read(answer, url)
                result = "ok"
                return body
        except TimeoutError as error:
            raise MissingFiguresError(f"no answer from {url} in {self._timeout.total} s") from error
        except aiohttp.ClientConnectorError as error:
            raise _NoSuchDocumentError(f"no connection to {url}: {error.os_error.strerror}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise MissingFiguresError(f"{url}: {type(error).__name__}: {error}") from error
        finally:
            metrics.SCRAPES.labels(source, result).inc()
            metrics.SCRAPE_SECONDS.labels(source).observe(time.perf_counter() - started)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, use_dns_cache=False, force_close=False
            )
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self._session


async def _read(answer: aiohttp.ClientResponse, url: str) -> bytes:
    if answer.status == 404:
        raise _NoSuchDocumentError(f"{url} is not there (404)")
    if answer.status == 401:
        raise _RefusedError(f"{url} answered 401")
    if answer.status != 200:
        raise MissingFiguresError(f"{url} answered {answer.status}")
    body = await read_body(answer.content, MAX_ANSWER_BYTES)
    if body is None:
        raise MissingFiguresError(f"{url} answered more than {MAX_ANSWER_BYTES} bytes")
    return body


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
