"""When the queue runs a key, on a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from operator_builders import FakeClock, settle
from tidemill_operator.keys import Key
from tidemill_operator.queue import Outcome, Pace, WorkQueue

A, B = Key("prod", "a"), Key("prod", "b")
PACE = Pace(resync_seconds=300, first_backoff_seconds=1, max_backoff_seconds=8)


class Work:
    """A run that records itself and can be held, failed, or told that its key is gone."""

    def __init__(self, clock: FakeClock) -> None:
        self.runs: list[tuple[Key, float]] = []
        self.failures = 0
        self.is_gone = False
        self.gate: asyncio.Event | None = None
        self.active: dict[Key, int] = {}
        self.most_active = 0
        self._clock = clock

    async def __call__(self, key: Key) -> Outcome:
        self.runs.append((key, self._clock.monotonic()))
        self.active[key] = self.active.get(key, 0) + 1
        self.most_active = max(self.most_active, *self.active.values())
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.active[key] -= 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the API is away")
        return Outcome.GONE if self.is_gone else Outcome.DONE

    def times(self, key: Key) -> list[float]:
        return [at - 1000 for which, at in self.runs if which == key]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def work(clock: FakeClock) -> Work:
    return Work(clock)


@pytest.fixture
async def make_queue(clock: FakeClock, work: Work) -> AsyncIterator[Callable[..., WorkQueue]]:
    made: list[WorkQueue] = []

    def make(concurrency: int = 8) -> WorkQueue:
        made.append(WorkQueue(work, clock, PACE, concurrency))
        return made[-1]

    yield make
    for queue in made:
        await queue.close()


async def test_runs_a_key_at_once(make_queue: Callable[..., WorkQueue], work: Work) -> None:
    make_queue().add(A)
    await settle()
    assert work.times(A) == [0]


async def test_many_additions_before_a_run_are_one(make_queue: Callable[..., WorkQueue], work: Work) -> None:
    queue = make_queue()
    for _ in range(5):
        queue.add(A)
    await settle()
    assert len(work.runs) == 1


async def test_never_runs_a_key_twice_at_the_same_time_but_once_more_after(
    make_queue: Callable[..., WorkQueue], work: Work
) -> None:
    queue = make_queue()
    work.gate = asyncio.Event()
    queue.add(A)
    await settle()
    queue.add(A)
    queue.add(A)
    await settle()
    assert len(work.runs) == 1
    work.gate.set()
    await settle()
    assert len(work.runs) == 2
    assert work.most_active == 1


async def test_runs_other_keys_meanwhile(make_queue: Callable[..., WorkQueue], work: Work) -> None:
    queue = make_queue()
    work.gate = asyncio.Event()
    queue.add(A)
    queue.add(B)
    await settle()
    assert {key for key, _ in work.runs} == {A, B}


async def test_bounds_how_many_run_together(make_queue: Callable[..., WorkQueue], work: Work) -> None:
    queue = make_queue(concurrency=1)
    work.gate = asyncio.Event()
    queue.add(A)
    queue.add(B)
    await settle()
    assert len(work.runs) == 1


async def test_waits_longer_after_each_failure_up_to_a_limit(
    make_queue: Callable[..., WorkQueue], work: Work, clock: FakeClock
) -> None:
    work.failures = 6
    make_queue().add(A)
    await clock.advance(60)
    assert work.times(A) == [0, 1, 3, 7, 15, 23, 31]


async def test_a_success_forgets_the_failures(
    make_queue: Callable[..., WorkQueue], work: Work, clock: FakeClock
) -> None:
    queue = make_queue()
    work.failures = 3
    queue.add(A)
    await clock.advance(10)
    work.failures = 1
    queue.add(A)
    await clock.advance(1)
    assert work.times(A) == [0, 1, 3, 7, 10, 11]


async def test_news_are_looked_at_in_spite_of_a_pause(
    make_queue: Callable[..., WorkQueue], work: Work, clock: FakeClock
) -> None:
    queue = make_queue()
    work.failures = 4
    queue.add(A)
    await clock.advance(4)
    queue.add(A)
    await settle()
    assert work.times(A) == [0, 1, 3, 4]


async def test_looks_again_from_time_to_time(
    make_queue: Callable[..., WorkQueue], work: Work, clock: FakeClock
) -> None:
    make_queue().add(A)
    await clock.advance(650)
    assert work.times(A) == [0, 300, 600]


async def test_lets_go_of_a_key_that_is_gone(
    make_queue: Callable[..., WorkQueue], work: Work, clock: FakeClock
) -> None:
    queue = make_queue()
    work.is_gone = True
    queue.add(A)
    await clock.advance(1000)
    assert work.times(A) == [0]
    assert queue.keys == frozenset()


async def test_a_key_that_comes_back_is_run_again(make_queue: Callable[..., WorkQueue], work: Work) -> None:
    queue = make_queue()
    work.is_gone = True
    queue.add(A)
    await settle()
    queue.add(A)
    await settle()
    assert len(work.runs) == 2


async def test_knows_for_how_long_a_run_has_been_stuck(
    make_queue: Callable[..., WorkQueue], work: Work, clock: FakeClock
) -> None:
    queue = make_queue()
    work.gate = asyncio.Event()
    queue.add(A)
    await clock.advance(200)
    assert queue.longest_run_seconds() == 200
    work.gate.set()
    await settle()
    assert queue.longest_run_seconds() == 0
