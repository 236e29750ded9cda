"""The core's loop over a scripted connection: what it does between steps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine_builders import make_request, make_scheduler, make_sim_runner
from tidemill_engine.core.engine import EngineCore
from tidemill_engine.core.learning import Learning
from tidemill_engine.core.loop import CoreLoop
from tidemill_engine.errors import PeerGone
from tidemill_engine.messages import ApiFrame, CoreFrame, Shutdown
from tidemill_engine.scheduler.step_model import StepFeatures
from tidemill_engine.step import SchedulerOutput


class ScriptedConnection:
    """Brings what the script says, turn by turn, once the core waits for it; then its peer is gone."""

    def __init__(self, turns: list[list[ApiFrame]]) -> None:
        self._turns = turns
        self.num_sent = 0

    def receive(self, timeout_seconds: float) -> list[ApiFrame]:
        if timeout_seconds == 0.0:
            return []
        if not self._turns:
            raise PeerGone("the script is over")
        return self._turns.pop(0)

    def send(self, _frame: CoreFrame) -> None:
        self.num_sent += 1


class NoHeartbeat:
    def beat(self, _now: float, _predicted_seconds: float = 0.0) -> None:
        """Promise nothing."""


@pytest.mark.parametrize(
    ("sentence", "silences", "num_checks"),
    [
        ("a request that follows at once does not wait for a check", 0, 0),
        ("a beat without one is time enough", 1, 2),
        ("longer silence needs no second check", 3, 2),
    ],
)
def test_the_books_are_checked_once_in_every_idle_time(sentence: str, silences: int, num_checks: int) -> None:
    runner = make_sim_runner()
    scheduler = make_scheduler(runner.info)
    check, checked = scheduler.check_integrity, [0]

    def counting() -> None:
        check()
        checked[0] += 1

    scheduler.check_integrity = counting  # type: ignore[method-assign]
    turns: list[list[ApiFrame]] = []
    for name in "ab":
        turns += [[ApiFrame(messages=[make_request(name)])], *([[]] * silences)]
    connection = ScriptedConnection(turns)
    engine = EngineCore(scheduler, runner, lambda: 0.0)
    loop = CoreLoop(engine, connection, NoHeartbeat(), lambda: 0.0)  # type: ignore[arg-type]
    with pytest.raises(PeerGone):
        loop.run()
    assert checked == [num_checks], sentence
    assert connection.num_sent > 0


class TimedConnection:
    """Brings frames when they are due, on a clock which only waiting moves; then its peer is gone."""

    def __init__(self, due: list[tuple[float, ApiFrame]]) -> None:
        self._due = due
        self.now = 0.0

    def receive(self, timeout_seconds: float) -> list[ApiFrame]:
        if not self._due and timeout_seconds >= 1.0:
            raise PeerGone("the script is over")
        until = self.now + timeout_seconds
        self.now = max(self.now, min(until, self._due[0][0])) if self._due else until
        frames = [frame for when, frame in self._due if when <= self.now]
        self._due = self._due[len(frames) :]
        return frames

    def send(self, _frame: CoreFrame) -> None:
        """Lose what is sent."""


MS_A_TOKEN = [
    (StepFeatures(count, 0.0, 0.0, 0).with_chunk(0, 0), 0.001 * count) for count in range(16, 160, 16)
]


def first_step(
    due: list[tuple[float, ApiFrame]],
    *,
    budget: int = 2048,
    knows_times: bool = True,
    heartbeat: NoHeartbeat | None = None,
) -> tuple[float, int]:
    """Return when the first step begins, in ms, and how many requests it has, at 1 ms for each token."""
    runner = make_sim_runner(num_blocks=2048)
    learning = Learning(512)
    if knows_times:
        learning.model.calibrate(MS_A_TOKEN)
    scheduler = make_scheduler(
        runner.info,
        seams=learning.seams(),
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        max_chunk_tokens=512,
    )
    connection = TimedConnection(due)
    launch, begun = runner.launch, []

    def noting(output: SchedulerOutput) -> None:
        begun.append((round(1e3 * connection.now, 3), len(output.new_rows)))
        launch(output)

    runner.launch = noting  # type: ignore[method-assign]
    engine = EngineCore(scheduler, runner, lambda: connection.now, learning=learning)
    heart = heartbeat or NoHeartbeat()
    with pytest.raises(PeerGone):
        CoreLoop(engine, connection, heart, lambda: connection.now).run()  # type: ignore[arg-type]
    return begun[0]


def crowd(*arrivals: tuple[int, int], prompt_len: int = 100) -> list[tuple[float, ApiFrame]]:
    """Return frames with so many requests each, at so many ms."""
    names = iter("abcdefghijklmnopqrstuvwxyz")
    return [
        (
            ms / 1e3,
            ApiFrame(messages=[make_request(next(names), prompt_len=prompt_len) for _ in range(count)]),
        )
        for ms, count in arrivals
    ]


@pytest.mark.parametrize(
    ("sentence", "due", "expected"),
    [
        ("one alone begins at once", crowd((0, 1), (3, 1)), (0.0, 1)),
        (
            "a crowd begins after 5 ms in which nobody came",
            crowd((0, 2), (4, 1), (8, 1), (14, 1), prompt_len=50),
            (13.0, 4),
        ),
        (
            "or a fiftieth of its step where that is more",
            crowd((0, 2), (15, 1), (36, 1), (77, 1), prompt_len=500),
            (76.0, 4),
        ),
        (
            "or when a tenth of its step has passed",
            crowd((0, 2), (3, 1), (6, 1), (9, 1), prompt_len=20),
            (8.0, 4),
        ),
        ("a short step waits for less than 5 ms", crowd((0, 2), (3, 1), prompt_len=4), (1.6, 2)),
        ("a step without a free slot begins at once", crowd((0, 8), (1, 1)), (0.0, 8)),
    ],
)
def test_the_first_step_of_a_crowd_waits_for_the_rest_of_it(
    sentence: str, due: list[tuple[float, ApiFrame]], expected: tuple[float, int]
) -> None:
    assert first_step(due) == expected, sentence


def test_a_step_that_is_full_begins_at_once() -> None:
    assert first_step(crowd((0, 2), (1, 1)), budget=200) == (0.0, 2)


def test_nobody_waits_for_a_crowd_while_the_times_of_steps_are_unknown() -> None:
    assert first_step(crowd((0, 2), (1, 1)), knows_times=False) == (0.0, 2)


def test_those_who_come_while_somebody_runs_are_not_waited_for() -> None:
    runner = make_sim_runner(num_blocks=2048)
    scheduler = make_scheduler(runner.info)
    scheduler.add(make_request("a"), seed=0)
    assert scheduler.schedule(0.0) is not None
    for name in "bc":
        scheduler.add(make_request(name), seed=0)
    assert scheduler.crowd() is None


def test_the_end_is_heard_while_a_crowd_waits() -> None:
    runner = make_sim_runner(num_blocks=2048)
    learning = Learning(512)
    learning.model.calibrate(MS_A_TOKEN)
    scheduler = make_scheduler(runner.info, max_num_batched_tokens=2048)
    connection = TimedConnection([*crowd((0, 2)), (0.002, ApiFrame(messages=[Shutdown()]))])
    engine = EngineCore(scheduler, runner, lambda: connection.now, learning=learning)
    CoreLoop(engine, connection, NoHeartbeat(), lambda: connection.now).run()  # type: ignore[arg-type]
    assert scheduler.stats().num_waiting == 2


def test_a_crowd_waits_no_longer_than_leaves_a_promised_first_token_in_time() -> None:
    def due(slo_seconds: float | None) -> list[tuple[float, ApiFrame]]:
        requests = [replace(make_request(name, prompt_len=80), ttft_slo_seconds=slo_seconds) for name in "yz"]
        return [(0.0, ApiFrame(messages=[*requests])), *crowd((4, 1), (8, 1), prompt_len=1)]

    assert first_step(due(None)) == (13.0, 4), "the step takes 160 ms"
    assert first_step(due(0.163)) == (3.0, 2)
    assert first_step(due(0.1)) == (0.0, 2), "too late anyway"


def test_the_heart_beats_while_a_crowd_waits() -> None:
    beats: list[float] = []

    class Heart(NoHeartbeat):
        def beat(self, now: float, _predicted_seconds: float = 0.0) -> None:
            beats.append(round(1e3 * now, 3))

    assert first_step(crowd((0, 2), (4, 1), (8, 1), prompt_len=50), heartbeat=Heart()) == (13.0, 4)
    assert {4.0, 8.0} <= set(beats)
