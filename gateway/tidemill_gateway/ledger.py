"""What this gateway knows of its own requests: how many each replica holds, and which replicas just failed.

Knows pod UIDs, counts and an injected clock. Refuses to know requests, services and sockets.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Ledger:
    """Counts of requests in flight by pod UID, and a short memory of failures."""

    def __init__(self, *, clock: Callable[[], float], suspect_seconds: float, first_turn: int = 0) -> None:
        self._clock = clock
        self._suspect_seconds = suspect_seconds
        self._turn = first_turn
        self._in_flight: dict[str, int] = {}
        self._suspect_until: dict[str, float] = {}

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Requests in flight by pod UID; pods without any are absent."""
        return self._in_flight

    @property
    def suspects(self) -> frozenset[str]:
        """The replicas that failed a request a moment ago."""
        now = self._clock()
        self._suspect_until = {uid: until for uid, until in self._suspect_until.items() if until > now}
        return frozenset(self._suspect_until)

    def next_turn(self) -> int:
        """Give the number that breaks the next tie."""
        self._turn += 1
        return self._turn

    def suspect(self, uid: str) -> None:
        """Remember that a replica has just failed a request."""
        self._suspect_until[uid] = self._clock() + self._suspect_seconds

    def trust(self, uid: str) -> None:
        """Forget a replica's failures, because it has just answered."""
        self._suspect_until.pop(uid, None)

    @contextmanager
    def hold(self, uid: str) -> Iterator[None]:
        """Count a request at a replica until the block ends."""
        self._in_flight[uid] = self._in_flight.get(uid, 0) + 1
        try:
            yield
        finally:
            left = self._in_flight[uid] - 1
            if left:
                self._in_flight[uid] = left
            else:
                del self._in_flight[uid]
