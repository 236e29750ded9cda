"""Asks replicas for their load that have not answered anything for a while.

Knows the public readiness page, whose answer carries the load header as every answer does. Refuses to know
what the figures are for. Only services that were asked for of late are looked after, and only replicas from
which nothing was heard: a busy replica says enough with its answers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import aiohttp

from tidemill_gateway.ledger import Ledger
from tidemill_gateway.load_report import LOAD_HEADER, parse_load
from tidemill_gateway.objects import Pod
from tidemill_operator import names

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PollingConfig:
    """How often and how patiently replicas are asked."""

    interval_seconds: float = 2.0
    timeout_seconds: float = 1.0
    max_at_once: int = 16


class Poller:
    """Keeps the figures of quiet replicas fresh."""

    def __init__(
        self,
        *,
        config: PollingConfig,
        session: aiohttp.ClientSession,
        ledger: Ledger,
        replicas: Callable[[], Iterable[Pod]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._config = config
        self._session = session
        self._ledger = ledger
        self._replicas = replicas
        self._sleep = sleep
        self._slots = asyncio.Semaphore(config.max_at_once)

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            await self._sleep(self._config.interval_seconds)
            await self.ask_quiet_ones()

    async def ask_quiet_ones(self) -> None:
        """Ask every replica once from which nothing was heard of late."""
        quiet = [
            pod
            for pod in self._replicas()
            if self._ledger.seconds_since_report(pod.uid) >= self._config.interval_seconds
        ]
        await asyncio.gather(*(self._ask(pod) for pod in quiet))

    async def _ask(self, pod: Pod) -> None:
        url = f"http://{pod.authority}{names.HEALTH_READY_PATH}"
        timeout = aiohttp.ClientTimeout(total=self._config.timeout_seconds)
        async with self._slots:
            try:
                async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                    report = parse_load(response.headers.get(LOAD_HEADER))
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                logger.debug("no load from %s: %r", pod.name, error)
                return
        if report is not None:
            self._ledger.report(pod.uid, report)
