"""Takes the engine out of service without losing anything, and back again where that is still wanted.

Draining: not ready at once; accepting for a grace time while routers hear of it; then new and unstarted
requests are refused and streams finish. Knows the state and the client; does not know signals or HTTP.
"""

from __future__ import annotations

import asyncio
import logging

from tidemill_engine.api.config import DrainConfig
from tidemill_engine.api.core_client import CoreClient
from tidemill_engine.api.state import Drain, EngineState, RequestNotTaken

logger = logging.getLogger(__name__)


class DrainController:
    """Starts and cancels the drain; starting twice changes nothing."""

    def __init__(self, state: EngineState, client: CoreClient, config: DrainConfig) -> None:
        self._state = state
        self._client = client
        self._config = config
        self._timer: asyncio.TimerHandle | None = None
        self._is_final = False
        self._started_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """Give the loop's time at which streams have had all the time they get; None when not draining.

        It counts from when the drain began, so that a SIGTERM that ends a drain adds no time to it.
        """
        if self._started_at is None:
            return None
        return self._started_at + self._config.grace_seconds + self._config.timeout_seconds

    @property
    def is_draining(self) -> bool:
        """Say whether the engine is on its way out."""
        return self._state.drain is not Drain.NO

    @property
    def is_final(self) -> bool:
        """Say whether the process will exit once drained, so that nothing can cancel it."""
        return self._is_final

    def start(self, reason: str, *, is_final: bool = False) -> None:
        """Begin to drain."""
        self._is_final = self._is_final or is_final
        if self.is_draining:
            return
        logger.info("draining (%s): accepting for %.1f s more", reason, self._config.grace_seconds)
        self._state.drain = Drain.ACCEPTING
        self._started_at = asyncio.get_running_loop().time()
        self._timer = asyncio.get_running_loop().call_later(self._config.grace_seconds, self._refuse)

    def cancel(self) -> bool:
        """Go back into service; say whether that was possible."""
        if self._is_final:
            return False
        if self._timer is not None:
            self._timer.cancel()
        if self.is_draining:
            logger.info("drain cancelled: back in service")
        self._state.drain = Drain.NO
        self._started_at = None
        return True

    def _refuse(self) -> None:
        logger.info("drain: refusing new requests, %d sequences in flight", self._client.num_in_flight)
        self._state.drain = Drain.REFUSING
        self._client.fail_unstarted(
            RequestNotTaken("this engine is draining and had not started this request", code="draining")
        )
