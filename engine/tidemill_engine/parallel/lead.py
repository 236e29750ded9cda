"""Rank 0's runner as the core's loop sees it: every step goes to the other ranks too.

Knows orders and what a broken step means: ranks that have not done the same can't go on together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidemill_engine.parallel.orders import RankOrder, encode_step
from tidemill_engine.runner.base import RunnerLost

if TYPE_CHECKING:
    from tidemill_engine.parallel.ranks import Ranks
    from tidemill_engine.runner.base import ModelRunner, RunnerInfo
    from tidemill_engine.step import SchedulerOutput, StepResult, TokenMasks

ReturnedT = TypeVar("ReturnedT")
_REPORT_SECONDS = 1.0


class LeadRunner:
    """Passes each call on to the other ranks and to rank 0's own part of the model."""

    def __init__(self, runner: ModelRunner, ranks: Ranks) -> None:
        self._runner = runner
        self._ranks = ranks

    @property
    def info(self) -> RunnerInfo:
        """Return what was loaded."""
        return self._runner.info

    def launch(self, output: SchedulerOutput) -> None:
        """Start computing a step on every rank."""
        order = RankOrder(step=encode_step(output))
        self._together(order, lambda: self._runner.launch(output))

    def sample(self, masks: TokenMasks | None) -> StepResult:
        """Choose the tokens of the oldest launched step; the other ranks take them from here."""
        return self._together(RankOrder(), lambda: self._runner.sample(masks))

    def _together(self, order: RankOrder, act: Callable[[], ReturnedT]) -> ReturnedT:
        """Do something on all ranks; whatever goes wrong on one is the end of all."""
        try:
            self._ranks.send(order)
            return act()
        except Exception as error:
            # Where a rank has died, its end is being reported and this process ends meanwhile.
            self._ranks.has_failed_within(_REPORT_SECONDS)
            raise RunnerLost(f"a step failed, which divides the ranks: {error}") from error
