"""Which replicas have just failed, and for how long each is avoided.

Pure. Knows failures and successes by UID; times are arguments. Refuses to know what a failure was. Each
failure in a row doubles the time; one success ends it.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Ejection:
    """How often a replica has failed in a row, and until when it is avoided."""

    num_failures: int
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
            return
        num = 1 if before is None else before.num_failures + 1
        seconds = min(self._first_seconds * 2.0 ** (num - 1), self._max_seconds)
        self._ejections[uid] = Ejection(num_failures=num, until=now + seconds)

    def succeed(self, uid: str) -> None:
        """Forget a replica's failures."""
        self._ejections.pop(uid, None)

    def avoided(self, now: float) -> frozenset[str]:
        """Give the replicas to avoid now."""
        if not self._ejections:
            return frozenset()
        return frozenset(uid for uid, ejection in self._ejections.items() if ejection.until > now)

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Forget the replicas that no longer exist."""
        self._ejections = {uid: ejection for uid, ejection in self._ejections.items() if uid in uids}
