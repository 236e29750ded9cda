"""Events are counted and not repeated."""

from __future__ import annotations

from typing import Any, cast

import pytest

from operator_builders import FakeClock, make_service
from tidemill_operator.actions import Event
from tidemill_operator.api import Api, Place
from tidemill_operator.errors import ApiError
from tidemill_operator.recorder import REPEAT_AFTER_SECONDS, Recorder

Object = dict[str, Any]
CRASH = Event(type="Warning", reason="CrashLoopBackOff", message="the engine ended with exit code 1")


class FakeApi:
    """Events by name."""

    def __init__(self) -> None:
        self.events: dict[str, Object] = {}
        self.status = 201

    async def create(self, manifest: Object, *, kind: str) -> Object:
        name = manifest["metadata"]["name"]
        status = 409 if name in self.events else self.status
        if status != 201:
            raise ApiError(status=status, reason="Test", message="as the test wants", request="POST")
        return self.events.setdefault(name, manifest)

    async def get(self, place: Place) -> Object | None:
        return self.events.get(place.name)

    async def merge(self, place: Place, patch: Object) -> Object:
        self.events[place.name].update(patch)
        return self.events[place.name]


class Told:
    """A recorder with what it wrote."""

    def __init__(self) -> None:
        self.api, self.clock = FakeApi(), FakeClock()
        self.recorder = self.new_recorder()

    def new_recorder(self) -> Recorder:
        return Recorder(cast("Api", self.api), "operator-0", self.clock.monotonic)

    async def tell(self, event: Event = CRASH, **metadata: Any) -> None:
        await self.recorder.record(make_service(resourceVersion="7", **metadata), event)

    @property
    def counts(self) -> list[int]:
        return [event["count"] for event in self.api.events.values()]


@pytest.fixture
def told() -> Told:
    return Told()


async def test_the_same_event_soon_after_is_not_written(told: Told) -> None:
    await told.tell()
    await told.tell()
    assert told.counts == [1]


async def test_the_same_event_much_later_is_counted(told: Told) -> None:
    await told.tell()
    await told.clock.advance(REPEAT_AFTER_SECONDS + 1)
    await told.tell()
    assert told.counts == [2]


async def test_the_next_operator_counts_what_its_predecessor_told(told: Told) -> None:
    await told.tell()
    told.recorder = told.new_recorder()
    await told.tell()
    assert told.counts == [2]


async def test_other_words_and_other_services_have_events_of_their_own(told: Told) -> None:
    await told.tell()
    await told.tell(Event(type="Warning", reason="CrashLoopBackOff", message="exit code 2"))
    await told.tell(uid="made again")
    assert told.counts == [1, 1, 1]


async def test_an_event_that_cannot_be_written_fails_nothing(told: Told) -> None:
    told.api.status = 403
    await told.tell()
    assert told.counts == []
