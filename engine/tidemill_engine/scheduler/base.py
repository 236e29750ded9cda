"""The contract of a scheduler.

A scheduler owns every request from `add` to its last `RequestOutput`. `schedule` may be called again before
`update` has brought the previous step's result: then that step is in flight, and what it reads or writes
(rows, blocks) is not given to anyone else until its `update`. Results come in the order of the steps. Time
comes in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemill_engine.messages import EngineRequest, RequestOutput
    from tidemill_engine.step import SchedulerOutput, StepResult


@dataclass(frozen=True, kw_only=True)
class SchedulerStats:
    """A scheduler's figures now; `num_preemptions`, `prompt_tokens` and `generation_tokens` only grow."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_total_blocks: int
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    waiting_prompt_tokens: int
    is_admission_open: bool


class Scheduler(Protocol):
    """What the core's loop needs."""

    def add(self, message: EngineRequest, seed: int) -> RequestOutput | None:
        """Take a request in; the output, if any, refuses it."""

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is; None if there is no such request."""

    def schedule(self, now: float) -> SchedulerOutput | None:
        """Choose the next step's tokens; None if there is nothing to compute now."""

    def update(self, result: StepResult, now: float) -> list[RequestOutput]:
        """Take in the oldest step's result and say what each request got."""

    def has_work(self) -> bool:
        """Say whether any request has not ended."""

    def stats(self) -> SchedulerStats:
        """Return the figures."""

    def take_inter_token_seconds(self) -> list[float]:
        """Return and forget the intervals between output tokens since the last call."""

    def check_integrity(self) -> None:
        """Raise if blocks or rows are lost or used twice."""
