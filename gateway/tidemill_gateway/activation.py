"""Asks the operator to wake services: writes `status.activation.requestTime`, and nothing else ever.

Knows how often one may ask, and that asking is repeated while somebody still waits. Refuses to know who
waits and what a wake takes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tidemill_gateway.api_error import ApiError
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Service
from tidemill_gateway.world import World
from tidemill_operator import names

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
FIRST_RETRY_SECONDS = 0.5


class StatusWriter(Protocol):
    """What an activation needs of an API client; raises ApiError."""

    async def apply_status(self, manifest: dict[str, Any]) -> None:
        """Server-side apply a status as the gateway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationHooks:
    """What an activator asks of the rest: the newest world and the time."""

    world: Callable[[], World]
    wall: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Activator:
    """One asking task per service that somebody waits for."""

    def __init__(self, writer: StatusWriter | None, metrics: GatewayMetrics, hooks: ActivationHooks) -> None:
        self._writer = writer
        self._metrics = metrics
        self._hooks = hooks
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._last_sent: dict[str, float] = {}

    def ask(self, uid: str, is_needed: Callable[[str], bool]) -> None:
        """See to it that the service is asked to wake for as long as it is needed."""
        if uid not in self._asking and self._writer is not None:
            asking = self._keep_asking(self._writer, uid, is_needed)
            self._asking[uid] = asyncio.get_running_loop().create_task(asking)

    async def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _keep_asking(self, writer: StatusWriter, uid: str, is_needed: Callable[[str], bool]) -> None:
        retry_seconds = FIRST_RETRY_SECONDS
        try:
            while True:
                service = self._hooks.world().services.get(uid)
                if service is None or not is_needed(uid):
                    return
                wait_seconds = self._seconds_until_due(service)
                if wait_seconds <= 0:
                    if await self._send(writer, service):
                        retry_seconds, wait_seconds = FIRST_RETRY_SECONDS, INTERVAL_SECONDS
                    else:
                        wait_seconds = retry_seconds
                        retry_seconds = min(2 * retry_seconds, INTERVAL_SECONDS)
                await self._hooks.sleep(wait_seconds)
        finally:
            self._asking.pop(uid, None)
            self._last_sent = {key: sent for key, sent in self._last_sent.items() if self._is_recent(sent)}

    def _seconds_until_due(self, service: Service) -> float:
        """Give how long to wait, whichever gateway asked last; a clock ahead of ours adds nothing."""
        last = max(self._last_sent.get(service.uid, 0.0), service.last_activation)
        return min(last + INTERVAL_SECONDS - self._hooks.wall(), INTERVAL_SECONDS)

    def _is_recent(self, sent: float) -> bool:
        return sent + INTERVAL_SECONDS > self._hooks.wall()

    async def _send(self, writer: StatusWriter, service: Service) -> bool:
        now = self._hooks.wall()
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": service.name, "namespace": service.namespace, "uid": service.uid},
            "status": {"activation": {"requestTime": stamp}},
        }
        try:
            await writer.apply_status(manifest)
        except Exception as error:
            # A fault of our own, too, must not leave those who wait with nobody who asks again.
            is_told = isinstance(error, ApiError)
            logger.warning(
                "could not ask %s/%s to wake: %s",
                service.namespace,
                service.name,
                error,
                exc_info=None if is_told else error,
            )
            self._metrics.decisions.activations.labels(service.namespace, service.name, "failed").inc()
            return False
        self._last_sent[service.uid] = now
        logger.info("asked %s/%s to wake", service.namespace, service.name)
        self._metrics.decisions.activations.labels(service.namespace, service.name, "asked").inc()
        return True
