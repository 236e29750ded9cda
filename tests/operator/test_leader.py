"""Elections between candidates that share a lease and a clock."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from operator_builders import FakeClock, settle
from tidemill_operator.api import Place
from tidemill_operator.errors import ApiError
from tidemill_operator.leader import LeaderElector, LeadershipLostError, LeaseTiming

PLACE = Place(kind="Lease", namespace="tidemill-system", name="tidemill-operator")


def failure(status: int) -> ApiError:
    return ApiError(status=status, reason="Test", message="no", request="PUT lease")


class FakeLeases:
    """An API server with one lease, which keeps versions apart."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.is_away = False
        self.hangs: asyncio.Event | None = None

    async def get(self, place: Place) -> dict[str, Any] | None:
        await self._answer()
        return copy.deepcopy(self.lease)

    async def create(self, manifest: dict[str, Any], *, kind: str) -> dict[str, Any]:
        await self._answer()
        if self.lease is not None:
            raise failure(409)
        return self._store(manifest, 1)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._answer()
        if self.lease is None or manifest["metadata"]["resourceVersion"] != self.version:
            raise failure(409)
        return self._store(manifest, int(self.version) + 1)

    @property
    def version(self) -> str:
        return str(self.lease["metadata"]["resourceVersion"]) if self.lease else ""

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    def _store(self, manifest: dict[str, Any], version: int) -> dict[str, Any]:
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(version)
        return self.lease

    async def _answer(self) -> None:
        if self.hangs is not None:
            await self.hangs.wait()
        if self.is_away:
            raise failure(0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


class Candidate:
    """An elector with its own life: acquire, then hold."""

    def __init__(self, leases: FakeLeases, clock: FakeClock, name: str) -> None:
        self.elector = LeaderElector(leases, PLACE, name, clock)
        self.task = asyncio.create_task(self._live())
        self.lost: LeadershipLostError | None = None

    async def _live(self) -> None:
        await self.elector.acquire()
        try:
            await self.elector.hold()
        except LeadershipLostError as error:
            self.lost = error


@pytest.fixture
async def join(leases: FakeLeases, clock: FakeClock) -> AsyncIterator[Callable[[str], Candidate]]:
    candidates: list[Candidate] = []

    def start(name: str) -> Candidate:
        candidates.append(Candidate(leases, clock, name))
        return candidates[-1]

    yield start
    for candidate in candidates:
        candidate.task.cancel()
    await asyncio.gather(*(candidate.task for candidate in candidates), return_exceptions=True)


async def test_the_first_candidate_leads(join: Callable[[str], Candidate], leases: FakeLeases) -> None:
    first = join("a")
    await settle()
    assert first.elector.is_leader
    assert leases.holder == "a"


async def test_of_two_candidates_one_leads(join: Callable[[str], Candidate], clock: FakeClock) -> None:
    first, second = join("a"), join("b")
    await clock.advance(120)
    assert [first.elector.is_leader, second.elector.is_leader] == [True, False]


async def test_a_standby_takes_over_when_the_leader_dies(
    join: Callable[[str], Candidate], clock: FakeClock, leases: FakeLeases
) -> None:
    first, second = join("a"), join("b")
    await clock.advance(5)
    first.task.cancel()
    await clock.advance(14)
    assert not second.elector.is_leader
    await clock.advance(6)
    assert second.elector.is_leader
    assert (leases.holder, (leases.lease or {})["spec"]["leaseTransitions"]) == ("b", 1)


async def test_a_standby_takes_over_at_once_from_a_leader_that_leaves(
    join: Callable[[str], Candidate], clock: FakeClock
) -> None:
    first, second = join("a"), join("b")
    await clock.advance(5)
    first.task.cancel()
    await first.elector.release()
    assert not first.elector.is_leader
    await clock.advance(2)
    assert second.elector.is_leader


async def test_a_leader_that_cannot_renew_loses_before_another_may_take_over(
    join: Callable[[str], Candidate], clock: FakeClock, leases: FakeLeases
) -> None:
    first = join("a")
    await clock.advance(4)
    leases.is_away = True
    await clock.advance(6)
    assert first.lost is None
    await clock.advance(5)
    assert first.lost is not None
    assert not first.elector.is_leader


async def test_a_short_outage_costs_nothing(
    join: Callable[[str], Candidate], clock: FakeClock, leases: FakeLeases
) -> None:
    first = join("a")
    await clock.advance(4)
    leases.is_away = True
    await clock.advance(6)
    leases.is_away = False
    await clock.advance(60)
    assert first.lost is None
    assert first.elector.is_leader


async def test_a_request_that_hangs_does_not_keep_a_leader_in_office(
    join: Callable[[str], Candidate], clock: FakeClock, leases: FakeLeases
) -> None:
    first = join("a")
    await clock.advance(4)
    leases.hangs = asyncio.Event()
    await clock.advance(11)
    assert not first.elector.is_leader
    await clock.advance(1)
    assert first.lost is not None


async def test_a_leader_whose_lease_was_taken_stops_at_once(
    join: Callable[[str], Candidate], clock: FakeClock, leases: FakeLeases
) -> None:
    first = join("a")
    await clock.advance(4)
    lease = leases.lease or {}
    lease["spec"]["holderIdentity"] = "b"
    await clock.advance(2)
    assert first.lost is not None


async def test_a_process_that_slept_too_long_does_not_renew(
    join: Callable[[str], Candidate], clock: FakeClock, leases: FakeLeases
) -> None:
    first = join("a")
    await settle()
    version = leases.version
    clock.seconds += 30
    assert not first.elector.is_leader
    await clock.advance(3)
    assert first.lost is not None
    assert leases.version == version


@pytest.mark.parametrize(
    ("duration", "deadline", "retry"), [(10, 10.0, 2.0), (15, 2.0, 2.0), (15, 10.0, 0.0)]
)
def test_refuses_timings_under_which_two_could_lead_or_nobody_could(
    duration: int, deadline: float, retry: float
) -> None:
    with pytest.raises(ValueError, match="must be longer"):
        LeaseTiming(duration_seconds=duration, renew_deadline_seconds=deadline, retry_seconds=retry)
