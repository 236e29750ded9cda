"""Which replicas have just failed, and for how long each is avoided.

Pure. Knows failures and successes by UID; times are arguments. Refuses to know what a failure was. Each
failure in a row doubles the time; the success of a request that began after the last of them ends it.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class Ejection:
    """How often a replica has failed in a row, when it last did, and until when it is avoided."""

    num_failures: int
    failed_at: float
    until: float


class Outliers:
    """The replicas to avoid."""

    def __init__(self, *, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._ejections: dict[str, Ejection] = {}

    def fail(self, uid: str, now: float) -> None:
        """Count a failure; those of requests that were under way together count once."""
        before = self._ejections.get(uid)
        if before is not None and now < before.until:
            self._ejections[uid] = replace(before, failed_at=now)
            return
        num = 1 if before is None else before.num_failures + 1
        seconds = min(self._first_seconds * 2.0 ** (num - 1), self._max_seconds)
        self._ejections[uid] = Ejection(num_failures=num, failed_at=now, until=now + seconds)

    def succeed(self, uid: str, began: float) -> None:
        """Forget a replica's failures if the request that succeeded began after the last of them.

        A stream that was under way before may well end although nothing new would be answered.
        """
        ejection = self._ejections.get(uid)
        if ejection is not None and began >= ejection.failed_at:
            del self._ejections[uid]

    def avoided(self, now: float) -> frozenset[str]:
        """Give the replicas to avoid now."""
        if not self._ejections:
            return frozenset()
        return frozenset(uid for uid, ejection in self._ejections.items() if ejection.until > now)

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Forget the replicas that no longer exist."""
        self._ejections = {uid: ejection for uid, ejection in self._ejections.items() if uid in uids}
