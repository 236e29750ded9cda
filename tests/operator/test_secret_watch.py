"""Admin Secrets are looked after by name, at a bounded rate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from operator_builders import FakeClock
from tidemill_operator.api import Place
from tidemill_operator.errors import ApiError
from tidemill_operator.keys import Key
from tidemill_operator.secret_watch import SecretWatch

Object = dict[str, Any]


class World:
    """Secrets by name, how often they were asked for, and the services that were told of."""

    def __init__(self, num_services: int) -> None:
        self.keys = [Key("prod", f"s{number}") for number in range(num_services)]
        self.secrets = {f"{key.name}-admin-token": {"metadata": {"uid": key.name}} for key in self.keys}
        self.known = {key: {"metadata": {"uid": key.name}} for key in self.keys}
        self.num_asked = 0
        self.told: list[Key] = []
        self.is_failing = False

    async def get_metadata(self, place: Place) -> Object | None:
        self.num_asked += 1
        if self.is_failing:
            raise ApiError(status=500, reason="Test", message="as the test wants", request="GET")
        assert place.kind == "Secret"
        return self.secrets.get(place.name)


async def watch_for(world: World, seconds: float) -> None:
    clock = FakeClock()
    watch = SecretWatch(world, lambda: world.known, world.told.append, clock)
    task = asyncio.create_task(watch.run())
    await clock.advance(seconds)
    assert not task.done()
    task.cancel()


async def test_a_deleted_secret_is_noticed_within_one_round() -> None:
    world = World(3)
    del world.secrets["s1-admin-token"]
    await watch_for(world, 6)
    assert set(world.told) == {Key("prod", "s1")}


async def test_a_secret_that_was_replaced_is_noticed() -> None:
    world = World(1)
    world.secrets["s0-admin-token"] = {"metadata": {"uid": "another"}}
    await watch_for(world, 6)
    assert world.told == [Key("prod", "s0")]


@pytest.mark.parametrize(("num_services", "most"), [(0, 0), (1, 12), (20, 240), (500, 240)])
async def test_asks_a_bounded_number_of_times_a_minute(num_services: int, most: int) -> None:
    world = World(num_services)
    await watch_for(world, 60)
    assert world.num_asked <= most
    assert world.told == []


async def test_an_api_server_that_does_not_answer_tells_nothing() -> None:
    world = World(2)
    world.is_failing = True
    await watch_for(world, 10)
    assert world.num_asked > 0
    assert world.told == []
