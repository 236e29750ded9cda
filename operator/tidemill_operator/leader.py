"""Leader election by a Lease: at most one operator acts.

Knows the Lease's protocol: who holds it, and by this process's own clock when it was last seen to change.
Refuses to know what the leader does, and to go on when the lease could not be renewed in time: then it
raises, and the process must end at once.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from tidemill_operator import metrics
from tidemill_operator.api import Object, Place
from tidemill_operator.clock import Clock
from tidemill_operator.errors import ApiError, OperatorError

logger = logging.getLogger(__name__)

_MICRO_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class LeadershipLostError(OperatorError):
    """The lease could not be renewed in time, or someone else holds it."""


class LeaseApi(Protocol):
    """The few requests that an election makes."""

    async def get(self, place: Place) -> Object | None:
        """Read the lease."""
        ...

    async def create(self, manifest: Object, *, kind: str) -> Object:
        """Create the lease."""
        ...

    async def replace(self, manifest: Object) -> Object:
        """Replace the lease at the version that was read."""
        ...


@dataclass(frozen=True, kw_only=True)
class LeaseTiming:
    """For how long a lease counts, how long renewing may fail, and how often it is tried."""

    duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration_seconds > self.renew_deadline_seconds > self.retry_seconds > 0:
            raise ValueError(
                "a lease's duration must be longer than the deadline for renewing it, and that longer than "
                f"the time between tries: {self.duration_seconds}, {self.renew_deadline_seconds}, "
                f"{self.retry_seconds} s"
            )


class LeaderElector:
    """One candidate for one lease."""

    def __init__(
        self, api: LeaseApi, place: Place, identity: str, clock: Clock, timing: LeaseTiming | None = None
    ) -> None:
        self._api = api
        self._place = place
        self._identity = identity
        self._clock = clock
        self._timing = timing or LeaseTiming()
        self._seen: dict[str, Any] | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    @property
    def is_leader(self) -> bool:
        """Tell whether the lease is held and was renewed recently enough to act on it."""
        if self._renewed_at is None:
            return False
        return self._clock.monotonic() - self._renewed_at < self._timing.renew_deadline_seconds

    @property
    def holder(self) -> str:
        """Give who held the lease when it was last looked at; empty when nobody did."""
        return str((self._seen or {}).get("holderIdentity") or "")

    async def acquire(self) -> None:
        """Wait until the lease is held."""
        while not await self._attempt(self._timing.renew_deadline_seconds):
            await self._clock.sleep(self._timing.retry_seconds)
        metrics.IS_LEADER.set(1)
        logger.info("%s holds the lease %s and acts", self._identity, self._place.name)

    async def hold(self) -> None:
        """Renew the lease for ever; raise LeadershipLostError when it is lost."""
        while True:
            await self._clock.sleep(self._timing.retry_seconds)
            if self._left() <= 0 or not await self._attempt(self._left()):
                self._check_still_held()

    async def release(self) -> None:
        """Give the lease back, so that a standby need not wait for it to run out."""
        if not self.is_leader:
            return
        self._renewed_at = None
        metrics.IS_LEADER.set(0)
        with contextlib.suppress(ApiError):
            lease = await self._api.get(self._place)
            if lease is not None and _holder(lease) == self._identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(self._typed({**lease, "spec": spec}))

    def _left(self) -> float:
        """Give the time until the lease must have been renewed."""
        renewed_at = self._renewed_at if self._renewed_at is not None else float("-inf")
        return renewed_at + self._timing.renew_deadline_seconds - self._clock.monotonic()

    def _check_still_held(self) -> None:
        holder = (self._seen or {}).get("holderIdentity")
        if holder and holder != self._identity:
            raise LeadershipLostError(f"{holder} holds the lease {self._place.name}")
        if self._left() <= 0:
            raise LeadershipLostError(f"the lease {self._place.name} could not be renewed in time")

    async def _attempt(self, within_seconds: float) -> bool:
        """Try once to get or keep the lease, within a time."""
        trying = asyncio.ensure_future(self._try())
        passed = asyncio.ensure_future(self._clock.sleep(within_seconds))
        try:
            await asyncio.wait((trying, passed), return_when=asyncio.FIRST_COMPLETED)
            if not trying.done():
                logger.warning("no answer about the lease %s in time", self._place.name)
                return False
            return trying.result()
        except ApiError as error:
            logger.warning("cannot get or renew the lease: %s", error)
            return False
        finally:
            for waiter in (trying, passed):
                waiter.cancel()

    async def _try(self) -> bool:
        started_at = self._clock.monotonic()
        lease = await self._api.get(self._place)
        if lease is None:
            await self._api.create(self._new_lease(), kind="Lease")
        elif self._may_take(lease):
            await self._api.replace(self._taken(lease))
        else:
            return False
        self._renewed_at = started_at
        return True

    def _may_take(self, lease: Object) -> bool:
        """Tell whether the lease is ours, free, or has not changed for as long as it counts."""
        spec = lease.get("spec") or {}
        if spec != self._seen:
            self._seen, self._seen_at = dict(spec), self._clock.monotonic()
        holder = _holder(lease)
        if not holder or holder == self._identity:
            return True
        duration = spec.get("leaseDurationSeconds") or self._timing.duration_seconds
        return self._clock.monotonic() - self._seen_at >= float(duration)

    def _new_lease(self) -> Object:
        metadata = {"name": self._place.name, "namespace": self._place.namespace}
        now = _micro_time(self._clock.now())
        spec = {**self._own_spec(now), "acquireTime": now, "leaseTransitions": 0}
        return self._typed({"metadata": metadata, "spec": spec})

    def _taken(self, lease: Object) -> Object:
        now = _micro_time(self._clock.now())
        spec = {**(lease.get("spec") or {}), **self._own_spec(now)}
        if _holder(lease) != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        return self._typed({**lease, "spec": spec})

    def _own_spec(self, now: str) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.duration_seconds,
            "renewTime": now,
        }

    def _typed(self, lease: Object) -> Object:
        return {**lease, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}


def _holder(lease: Object) -> str:
    return (lease.get("spec") or {}).get("holderIdentity") or ""


def _micro_time(instant: datetime) -> str:
    return instant.strftime(_MICRO_TIME)
