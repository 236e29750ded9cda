"""What this gateway knows of replicas' loads: its own requests, what engines reported, and who just failed.

Knows pod UIDs, counts and an injected clock. Refuses to know requests, services and sockets.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

from tidemill_gateway.load_report import LoadReport
from tidemill_gateway.outliers import Outliers
from tidemill_gateway.placement import Candidate

MAX_EJECTION_SECONDS = 60.0
STALE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A report, when it came, and how many of this gateway's requests the replica had then."""

    report: LoadReport
    time: float
    num_own_requests: int


class _Hold:
    """A request at a replica, counted until the block ends."""

    __slots__ = ("_num_tokens", "_requests", "_tokens", "_uid")

    def __init__(self, uid: str, num_tokens: int, requests: dict[str, int], tokens: dict[str, int]) -> None:
        self._uid, self._num_tokens = uid, num_tokens
        self._requests, self._tokens = requests, tokens

    def __enter__(self) -> None:
        uid = self._uid
        self._requests[uid] = self._requests.get(uid, 0) + 1
        self._tokens[uid] = self._tokens.get(uid, 0) + self._num_tokens

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        uid = self._uid
        self._requests[uid] -= 1
        self._tokens[uid] -= self._num_tokens
        if not self._requests[uid]:
            del self._requests[uid], self._tokens[uid]


class Ledger:
    """Own requests and tokens by pod UID, the last reports, and a short memory of failures."""

    def __init__(self, *, clock: Callable[[], float], suspect_seconds: float, first_turn: int = 0) -> None:
        self._clock = clock
        self._turn = first_turn
        self._requests: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._reported: dict[str, Reported] = {}
        self._outliers = Outliers(first_seconds=suspect_seconds, max_seconds=MAX_EJECTION_SECONDS)

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Requests in flight by pod UID; pods without any are absent."""
        return self._requests

    @property
    def suspects(self) -> frozenset[str]:
        """The replicas that failed a request a moment ago."""
        return self._outliers.avoided(self._clock())

    @property
    def now(self) -> float:
        """The time, as requests' beginnings are compared with failures."""
        return self._clock()

    def next_turn(self) -> int:
        """Give the number that breaks the next tie."""
        self._turn += 1
        return self._turn

    def suspect(self, uid: str) -> None:
        """Remember that a replica has just failed a request."""
        self._outliers.fail(uid, self._clock())

    def trust(self, uid: str, began: float) -> None:
        """Forget a replica's failures before `began`, when it got a request that it has now answered."""
        self._outliers.succeed(uid, began)

    def report(self, uid: str, report: LoadReport) -> None:
        """Take what a replica says of its load."""
        own = self._requests.get(uid, 0)
        self._reported[uid] = Reported(report=report, time=self._clock(), num_own_requests=own)

    def seconds_since_report(self, uid: str) -> float:
        """Give the age of a replica's last report; endless where there was none."""
        reported = self._reported.get(uid)
        return float("inf") if reported is None else self._clock() - reported.time

    def candidates(self, uids: Iterable[str], *, is_alone: bool) -> list[Candidate]:
        """Describe replicas for placement; `is_alone` where no other gateway sends them requests."""
        return [self._candidate(uid, is_alone=is_alone) for uid in uids]

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Forget the replicas that no longer exist."""
        self._reported = {uid: reported for uid, reported in self._reported.items() if uid in uids}
        self._outliers.forget_all_but(uids)

    def hold(self, uid: str, num_tokens: int = 0) -> _Hold:
        """Count a request at a replica while the block of what this gives lasts."""
        return _Hold(uid, num_tokens, self._requests, self._tokens)

    def _candidate(self, uid: str, *, is_alone: bool) -> Candidate:
        is_recent = self.seconds_since_report(uid) <= STALE_SECONDS
        reported = self._reported.get(uid) if is_recent else None
        return Candidate(
            uid=uid,
            num_own_requests=self._requests.get(uid, 0),
            num_own_tokens=self._tokens.get(uid, 0),
            report=None if reported is None else reported.report,
            num_own_then=0 if reported is None else reported.num_own_requests,
            is_fresh=is_alone or is_recent,
        )
