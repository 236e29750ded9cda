"""How much may wait, in requests and in prompt tokens, and when who is refused should come back.

Pure: counts and times that it is given. Does not know HTTP or the core. Whoever is refused is told how long
the queue needs to shrink far enough, by the rate at which waiting prompts have been started of late.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from tidemill_engine.errors import InvalidConfig, InvalidRequest, Overloaded

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 15.0
LEAST_RETRY_SECONDS = 1
MOST_RETRY_SECONDS = 60
UNKNOWN_RETRY_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """`max_requests` counts sequences in flight, running ones included; tokens are waiting prompts'."""

    max_requests: int
    max_waiting_tokens: int | None = None

    def __post_init__(self) -> None:
        tokens = self.max_waiting_tokens
        if tokens is not None and tokens < 1:
            message = f"max_num_queued_tokens must be >= 1, not {tokens}"
            raise InvalidConfig(message, param="max_num_queued_tokens")


class DrainRate:
    """How much is taken off the queue per second, over about the last fifteen."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._began: float | None = None
        self._last = 0.0

    def add(self, amount: float, now: float) -> None:
        """Count what has left the queue."""
        if self._began is None:
            self._began = now
        self._amount = self._decayed(now) + amount
        self._last = max(now, self._last)

    def per_second(self, now: float) -> float:
        """Return the rate; 0 before anything has left."""
        if self._began is None:
            return 0.0
        seen_seconds = max(now - self._began, 1.0)
        window = WINDOW_SECONDS * -math.expm1(-seen_seconds / WINDOW_SECONDS)
        return self._decayed(now) / window

    def _decayed(self, now: float) -> float:
        return self._amount * math.exp(-max(now - self._last, 0.0) / WINDOW_SECONDS)


class QueueMeter:
    """What is in flight and what of it still waits for its first token."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._waiting: dict[str, int] = {}
        self._in_flight: set[str] = set()
        self._num_waiting_tokens = 0
        self._requests = DrainRate()
        self._tokens = DrainRate()

    @property
    def num_waiting_tokens(self) -> int:
        """Return the prompt tokens of all that wait for their first token."""
        return self._num_waiting_tokens

    def require_room(self, num_requests: int, num_tokens: int, now: float) -> None:
        """Raise `Overloaded` with the time to wait where so much more is too much.

        A request that alone is over the token limit is taken when nobody waits: later would be no better. One
        of more sequences than may ever be in flight is `InvalidRequest`.
        """
        limits = self._limits
        if num_requests > limits.max_requests:
            raise InvalidRequest(
                f"{num_requests} sequences (prompts times n) are more than the {limits.max_requests} that "
                "may run and wait here together"
            )
        excess = len(self._in_flight) + num_requests - limits.max_requests
        if excess > 0:
            seconds = retry_after(excess, self._requests.per_second(now))
            logger.warning("refusing %d sequences: %d are in flight", num_requests, len(self._in_flight))
            raise Overloaded(
                f"{len(self._in_flight)} sequences are waiting or running; try again later",
                retry_after_seconds=seconds,
            )
        if limits.max_waiting_tokens is None or not self._waiting:
            return
        excess = self._num_waiting_tokens + num_tokens - limits.max_waiting_tokens
        if excess > 0:
            seconds = retry_after(excess, self._tokens.per_second(now))
            logger.warning("refusing %d prompt tokens: %d wait", num_tokens, self._num_waiting_tokens)
            raise Overloaded(
                f"prompts of {self._num_waiting_tokens} tokens are waiting; try again later",
                retry_after_seconds=seconds,
            )

    def enter(self, request_id: str, num_tokens: int) -> None:
        """Count a sequence in; siblings share a prompt, so that it counts for one of them."""
        self._in_flight.add(request_id)
        self._waiting[request_id] = num_tokens
        self._num_waiting_tokens += num_tokens

    def start(self, request_id: str, now: float) -> None:
        """Note a sequence's first token; later ones change nothing."""
        num_tokens = self._waiting.pop(request_id, None)
        if num_tokens is None:
            return
        self._num_waiting_tokens -= num_tokens
        self._tokens.add(num_tokens, now)

    def leave(self, request_id: str, now: float) -> None:
        """Count a sequence out, whether it ever started or not; a second time changes nothing."""
        if request_id not in self._in_flight:
            return
        self._in_flight.discard(request_id)
        self._num_waiting_tokens -= self._waiting.pop(request_id, 0)
        self._requests.add(1, now)


def retry_after(excess: float, per_second: float) -> int:
    """Return the whole seconds until so much has drained, between 1 and 60."""
    if per_second <= 0.0:
        return UNKNOWN_RETRY_SECONDS
    return math.ceil(min(max(excess / per_second, LEAST_RETRY_SECONDS), MOST_RETRY_SECONDS))
