"""Lists and watches that end in every way there is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from operator_builders import FakeClock, settle
from tidemill_operator import names
from tidemill_operator.api import Api
from tidemill_operator.cache import Cache
from tidemill_operator.errors import ApiError
from tidemill_operator.informer import Informer, Source

Object = dict[str, Any]
SOURCE = Source(kind="Pod", shelf="Pod", selector=names.LABEL_SERVICE)


def make_pod(name: str, version: int) -> Object:
    labels = {names.LABEL_SERVICE: "chat"}
    return {
        "metadata": {"namespace": "prod", "name": name, "resourceVersion": str(version), "labels": labels}
    }


def event(kind: str, name: str, version: int) -> Object:
    return {"type": kind, "object": make_pod(name, version)}


def failed(status: int) -> ApiError:
    return ApiError(status=status, reason="Test", message="as the test wants", request="GET")


class FakeApi:
    """Answers lists and watches with what a test put in; an exception cuts a watch where it stands."""

    def __init__(self) -> None:
        self.lists: list[tuple[list[Object], str] | ApiError] = []
        self.watches: list[list[Object | Exception]] = []
        self.asked: list[str] = []

    async def list_all(self, kind: str, namespace: str | None, selector: str) -> tuple[list[Object], str]:
        self.asked.append("list")
        if not self.lists:
            await asyncio.Event().wait()
        answer = self.lists.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def watch(
        self, kind: str, namespace: str | None, selector: str, version: str
    ) -> AsyncIterator[Object]:
        self.asked.append(f"watch from {version}")
        if not self.watches:
            await asyncio.Event().wait()
        for answer in self.watches.pop(0):
            if isinstance(answer, Exception):
                raise answer
            yield answer


class Followed:
    """An informer that runs, what it keeps and what it told."""

    def __init__(self, source: Source = SOURCE) -> None:
        self.api = FakeApi()
        self.api.lists = [([make_pod("a", 3)], "5")]
        self.cache = Cache()
        self.clock = FakeClock()
        self.told: list[str] = []
        self.informer = Informer(cast("Api", self.api), source, self.cache, self._tell, self.clock)

    def _tell(self, shelf: str, obj: Object) -> None:
        self.told.append(obj["metadata"]["name"])

    @property
    def names(self) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.cache.all("Pod")]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.informer.run())
        await settle()
        try:
            yield
        finally:
            assert not task.done(), task.exception()
            task.cancel()


@pytest.fixture
def followed() -> Followed:
    return Followed()


async def test_lists_once_and_then_follows_the_changes(followed: Followed) -> None:
    followed.api.watches = [[event("ADDED", "b", 6), event("MODIFIED", "a", 7), event("DELETED", "b", 8)]]
    assert not followed.informer.synced.is_set()
    async with followed.running():
        assert followed.informer.synced.is_set()
        assert followed.names == ["a"]
        assert followed.told == ["a", "b", "a", "b"]
        assert followed.api.asked == ["list", "watch from 5", "watch from 8"]


async def test_the_echo_of_a_write_of_our_own_is_told_since_the_run_that_wrote_saw_the_world_without_it(
    followed: Followed,
) -> None:
    followed.cache.put("Pod", "Pod", make_pod("mine", 6))
    followed.api.watches = [[event("ADDED", "mine", 6)]]
    async with followed.running():
        assert followed.told == ["a", "mine"]


async def test_a_bookmark_moves_the_version_and_tells_nothing(followed: Followed) -> None:
    followed.api.watches = [[event("BOOKMARK", "none", 90)]]
    async with followed.running():
        assert followed.told == ["a"]
        assert followed.api.asked[-1] == "watch from 90"


@pytest.mark.parametrize(
    "end",
    [failed(410), {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}],
    ids=["as a status", "as an event"],
)
async def test_a_version_that_is_too_old_is_cured_by_a_new_list(
    followed: Followed, end: Object | Exception
) -> None:
    followed.api.watches = [[event("ADDED", "b", 6), end]]
    followed.api.lists.append(([make_pod("c", 20)], "21"))
    async with followed.running():
        await followed.clock.advance(1)
        assert followed.names == ["c"]
        assert followed.told == ["a", "b", "c", "a", "b"]
        assert followed.api.asked == ["list", "watch from 5", "list", "watch from 21"]


@pytest.mark.parametrize("status", [0, 429, 500, 503])
async def test_a_cut_watch_goes_on_where_it_was(followed: Followed, status: int) -> None:
    followed.api.watches = [[event("ADDED", "b", 6), failed(status)]]
    async with followed.running():
        await followed.clock.advance(1)
        assert followed.names == ["a", "b"]
        assert followed.api.asked == ["list", "watch from 5", "watch from 6"]


async def test_waits_longer_the_more_often_it_fails_and_never_gives_up(followed: Followed) -> None:
    followed.api.watches = [[failed(500)] for _ in range(100)]
    async with followed.running():
        await followed.clock.advance(60)
        num_in_a_minute = len(followed.api.asked)
        assert 5 <= num_in_a_minute <= 10
        await followed.clock.advance(600)
        assert 35 <= len(followed.api.asked) - num_in_a_minute <= 45


async def test_a_list_that_fails_is_tried_again_and_nothing_counts_as_known(followed: Followed) -> None:
    followed.api.lists = [failed(403), ([make_pod("a", 3)], "5")]
    async with followed.running():
        assert not followed.informer.synced.is_set()
        await followed.clock.advance(1)
        assert followed.informer.synced.is_set()


async def test_a_kind_that_the_api_server_may_not_know_holds_nothing_up_and_may_come_later() -> None:
    followed = Followed(replace(SOURCE, is_optional=True))
    followed.api.lists = [failed(404), failed(404), ([make_pod("a", 3)], "5")]
    followed.api.watches = [[failed(404)]]
    async with followed.running():
        assert followed.informer.synced.is_set()
        assert not followed.cache.is_known("Pod")
        await followed.clock.advance(14)
        assert followed.api.asked == ["list"]
        await followed.clock.advance(16)
        assert followed.told == ["a"]
        assert followed.api.asked == ["list", "list", "list", "watch from 5"]
        assert not followed.cache.is_known("Pod"), "the definition has just gone, and all objects with it"
        assert followed.names == []
        followed.api.lists.append(([], "9"))
        await followed.clock.advance(15)
        assert followed.cache.is_known("Pod")


async def test_an_event_that_makes_no_sense_is_cured_by_a_new_list(followed: Followed) -> None:
    followed.api.watches = [[{"type": "ADDED", "object": {"metadata": {}}}]]
    followed.api.lists.append(([make_pod("a", 3)], "9"))
    async with followed.running():
        await followed.clock.advance(1)
        assert followed.api.asked == ["list", "watch from 5", "list", "watch from 9"]
