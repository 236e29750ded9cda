"""The core's loop over a scripted connection: what it does between steps."""

from __future__ import annotations

import pytest

from engine_builders import make_request, make_scheduler, make_sim_runner
from tidemill_engine.core.engine import EngineCore
from tidemill_engine.core.loop import CoreLoop
from tidemill_engine.errors import PeerGone
from tidemill_engine.messages import ApiFrame, CoreFrame


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
