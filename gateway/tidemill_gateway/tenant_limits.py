"""What each tenant may ask of a service at this gateway: requests and tokens per minute, requests at once.

Pure. Knows limits, counts and levels; times are arguments. Refuses to know who a tenant is and what an answer
looks like. Every limit is for all gateways together and split evenly between the ready ones, so that none
needs to know what passes through the others. A minute's worth may come at once (token bucket). An answer's
tokens are charged when it has ended, since nobody knows them before: they may put the bucket in debt, which
delays the next request.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tidemill_gateway.places import share_of
from tidemill_gateway.service_spec import Limits

SECONDS_PER_MINUTE: Final = 60.0
TenantKey = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Which limit is reached, and when asking again may help."""

    reason: str
    retry_after_seconds: int


@dataclass(kw_only=True, slots=True)
class Bucket:
    """Fills at a rate up to a minute's worth; `level` may be negative."""

    level: float
    filled: float

    def fill(self, per_minute: float, now: float) -> None:
        """Add what the time since the last call is worth."""
        gained = max(now - self.filled, 0.0) * per_minute / SECONDS_PER_MINUTE
        self.level = min(self.level + gained, per_minute)
        self.filled = now


class TenantLimits:
    """The buckets and counts of all tenants, by service UID and tenant."""

    def __init__(self) -> None:
        self._requests: dict[TenantKey, Bucket] = {}
        self._tokens: dict[TenantKey, Bucket] = {}
        self._num_at_once: dict[TenantKey, int] = {}

    def enter(self, key: TenantKey, limits: Limits, now: float, num_gateways: int) -> Refused | None:
        """Count a request in, or say which limit refuses it; one that was let in must leave."""
        at_once = self._num_at_once.get(key, 0)
        most = limits.max_concurrent_requests
        if most is not None and at_once >= share_of(most, num_gateways):
            return Refused(reason=f"{most} requests at once", retry_after_seconds=1)
        requests = self._filled(self._requests, key, limits.requests_per_minute, (now, num_gateways))
        tokens = self._filled(self._tokens, key, limits.tokens_per_minute, (now, num_gateways))
        if requests is not None and requests.level < 1:
            per_minute = limits.requests_per_minute or 1
            return _refused(
                f"{per_minute} requests per minute", 1 - requests.level, per_minute / num_gateways
            )
        if tokens is not None and tokens.level <= 0:
            per_minute = limits.tokens_per_minute or 1
            return _refused(f"{per_minute} tokens per minute", 1 - tokens.level, per_minute / num_gateways)
        if requests is not None:
            requests.level -= 1
        self._num_at_once[key] = at_once + 1
        return None

    def leave(self, key: TenantKey, num_tokens: int) -> None:
        """Count a request out, with the tokens of prompt and answer."""
        left = self._num_at_once[key] - 1
        if left:
            self._num_at_once[key] = left
        else:
            del self._num_at_once[key]
        bucket = self._tokens.get(key)
        if bucket is not None:
            bucket.level -= num_tokens

    def forget_all_but(self, service_uids: Collection[str]) -> None:
        """Forget the tenants of services that no longer exist."""
        self._requests = {key: bucket for key, bucket in self._requests.items() if key[0] in service_uids}
        self._tokens = {key: bucket for key, bucket in self._tokens.items() if key[0] in service_uids}

    @staticmethod
    def _filled(
        buckets: dict[TenantKey, Bucket], key: TenantKey, per_minute: int | None, at: tuple[float, int]
    ) -> Bucket | None:
        if per_minute is None:
            buckets.pop(key, None)
            return None
        now, num_gateways = at
        share = max(per_minute / num_gateways, 1.0)
        bucket = buckets.setdefault(key, Bucket(level=share, filled=now))
        bucket.fill(share, now)
        return bucket


def _refused(reason: str, missing: float, per_minute: float) -> Refused:
    seconds = math.ceil(missing * SECONDS_PER_MINUTE / max(per_minute, 1.0))
    return Refused(reason=reason, retry_after_seconds=min(max(seconds, 1), 3600))
