"""How much may wait, in requests and in prompt tokens, and when who is refused should come back.

Pure: counts and times that it is given. Does not know HTTP or the core. Whoever is refused is told how long
the queue needs to shrink far enough, by the rate at which waiting prompts have been started of late.

A queue that one tenant has filled would shut out the others, whom the scheduler would serve at once. So a
quarter more may be taken in all, from tenants that hold no more than an even share of the limit with it.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass

from tidemill_engine.errors import InvalidConfig, InvalidRequest, Overloaded

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 15.0
LEAST_RETRY_SECONDS = 1
MOST_RETRY_SECONDS = 60
UNKNOWN_RETRY_SECONDS = 5
RESERVE_SHARE = 4
"""One in so many places is there beyond the limit, for tenants that others have left none."""


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

    @property
    def most_requests(self) -> int:
        """Return how many sequences there may be with what is kept for tenants that were left no place."""
        return self.max_requests + -(-self.max_requests // RESERVE_SHARE)


@dataclass(frozen=True, kw_only=True)
class _Held:
    """What is there of one kind, in all and of one tenant, and how many tenants there are with that one."""

    total: int
    own: int
    num_tenants: int

    def has_room(self, amount: int, limit: int) -> bool:
        """Say whether so much more of the tenant fits; what is kept for the others is a share of `limit`."""
        if self.total + amount <= limit:
            return True
        is_modest = self.own + amount <= limit // self.num_tenants
        return is_modest and self.total + amount <= limit + -(-limit // RESERVE_SHARE)


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
    """What is in flight and what of it still waits for its first token, of which tenant."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._waiting: dict[str, int] = {}
        self._tenants: dict[str, str] = {}
        """The tenant of every sequence in flight."""
        self._num_of: Counter[str] = Counter()
        self._num_waiting_tokens_of: Counter[str] = Counter()
        self._num_waiting_tokens = 0
        self._requests = DrainRate()
        self._tokens = DrainRate()

    @property
    def num_waiting_tokens(self) -> int:
        """Return the prompt tokens of all that wait for their first token."""
        return self._num_waiting_tokens

    def require_room(self, num_requests: int, num_tokens: int, now: float, *, tenant: str = "") -> None:
        """Raise `Overloaded` with the time to wait where so much more is too much.

        A request that alone is over the token limit is taken when nobody waits: later would be no better. One
        of more sequences than may ever be in flight is `InvalidRequest`.
        """
        limits, num_tenants = self._limits, len(self._num_of) + (tenant not in self._num_of)
        if num_requests > limits.max_requests:
            raise InvalidRequest(
                f"{num_requests} sequences (prompts times n) are more than the {limits.max_requests} that "
                "may run and wait here together"
            )
        num_in_flight = len(self._tenants)
        held = _Held(total=num_in_flight, own=self._num_of[tenant], num_tenants=num_tenants)
        if not held.has_room(num_requests, limits.max_requests):
            excess = num_in_flight + num_requests - limits.max_requests
            seconds = retry_after(excess, self._requests.per_second(now))
            logger.warning("refusing %d sequences: %d are in flight", num_requests, num_in_flight)
            raise Overloaded(
                f"{num_in_flight} sequences are waiting or running; try again later",
                retry_after_seconds=seconds,
            )
        self._require_room_for_tokens(num_tokens, now, tenant, num_tenants)

    def _require_room_for_tokens(self, num_tokens: int, now: float, tenant: str, num_tenants: int) -> None:
        limit, total = self._limits.max_waiting_tokens, self._num_waiting_tokens
        if limit is None or not self._waiting:
            return
        held = _Held(total=total, own=self._num_waiting_tokens_of[tenant], num_tenants=num_tenants)
        if not held.has_room(num_tokens, limit):
            seconds = retry_after(total + num_tokens - limit, self._tokens.per_second(now))
            logger.warning("refusing %d prompt tokens: %d wait", num_tokens, total)
            raise Overloaded(
                f"prompts of {total} tokens are waiting; try again later", retry_after_seconds=seconds
            )

    def enter(self, request_id: str, num_tokens: int, *, tenant: str = "") -> None:
        """Count a sequence in; siblings share a prompt, so that it counts for one of them."""
        self._tenants[request_id] = tenant
        self._num_of[tenant] += 1
        self._waiting[request_id] = num_tokens
        self._count_waiting_tokens(tenant, num_tokens)

    def start(self, request_id: str, now: float) -> None:
        """Note a sequence's first token; later ones change nothing."""
        num_tokens = self._waiting.pop(request_id, None)
        if num_tokens is None:
            return
        self._count_waiting_tokens(self._tenants[request_id], -num_tokens)
        self._tokens.add(num_tokens, now)

    def leave(self, request_id: str, now: float) -> None:
        """Count a sequence out, whether it ever started or not; a second time changes nothing."""
        tenant = self._tenants.pop(request_id, None)
        if tenant is None:
            return
        self._count_waiting_tokens(tenant, -self._waiting.pop(request_id, 0))
        self._num_of[tenant] -= 1
        if not self._num_of[tenant]:
            del self._num_of[tenant], self._num_waiting_tokens_of[tenant]
        self._requests.add(1, now)

    def _count_waiting_tokens(self, tenant: str, num_tokens: int) -> None:
        self._num_waiting_tokens += num_tokens
        self._num_waiting_tokens_of[tenant] += num_tokens


def retry_after(excess: float, per_second: float) -> int:
    """Return the whole seconds until so much has drained, between 1 and 60."""
    if per_second <= 0.0:
        return UNKNOWN_RETRY_SECONDS
    return math.ceil(min(max(excess / per_second, LEAST_RETRY_SECONDS), MOST_RETRY_SECONDS))
