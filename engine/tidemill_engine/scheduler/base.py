"""The contract of a scheduler.

A scheduler owns every request from `add` to its last `RequestOutput`. `schedule` may be called again before
`update` has brought the previous step's result: then that step is in flight, and what it reads or writes
(rows, blocks) is not given to anyone else until its `update`. Results come in the order of the steps. Time
comes in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemill_engine.messages import StepTokens

if TYPE_CHECKING:
    from tidemill_engine.messages import CoreMessage, EngineRequest, RequestOutput
    from tidemill_engine.scheduler.step_model import StepFeatures
    from tidemill_engine.step import IntArray, LongArray, SchedulerOutput, StepResult


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
    num_swapped: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    num_swap_blocks: int = 0
    num_free_swap_blocks: int = 0
    num_cached_blocks: int = 0
    num_hopeless: int = 0
    effective_batch_tokens: int = 0
    padding_tokens: int = 0
    kv_fragmentation_ratio: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutputs:
    """What a step's result means for its requests: columns for the many, objects for the exceptional few.

    `handles [n]` int64 and `token_ids [n]` int32: requests that got a token and nothing else. `special` are
    first and last outputs, errors, and those with logprobs. A request is in one of the two, never in both.
    """

    handles: LongArray
    token_ids: IntArray
    special: list[RequestOutput]

    def messages(self) -> list[CoreMessage]:
        """Return what the API process is sent."""
        if len(self.handles) == 0:
            return list(self.special)
        columns = StepTokens(handles=self.handles.tobytes(), token_ids=self.token_ids.tobytes())
        return [columns, *self.special]


class ChunkPolicy(Protocol):
    """How many tokens of prompts may go into a step beside its decodes."""

    def prefill_budget(self, step: DecodeLoad) -> int:
        """Return the most prompt tokens for this step; over `token_budget` means no bound of its own."""

    @property
    def effective_tokens(self) -> int:
        """Return how many tokens the latest step with decodes could have held; 0 if there is no bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeLoad:
    """What a step's decodes weigh, before any chunk joins: `context_tokens` is the sum of their contexts."""

    rows: IntArray
    context_tokens: int
    token_budget: int
    num_waiting: int = 0
    """How many requests could get prompt tokens: prompts under way, and waiting ones with a slot to take."""
    chunk_start: int = 0
    """How much of the prompt that is next to be continued is computed already."""
    ends_all_prompts: bool = False
    """Whether many wait for each that decodes, and the budget holds all that they still need."""


class PreemptionCosts(Protocol):
    """What it costs to bring a preempted request back, by measurement."""

    def swap_seconds(self, num_blocks: int) -> float:
        """Return the time to copy so many blocks out and in again."""

    def recompute_seconds(self, num_tokens: int) -> float:
        """Return the time to compute so many tokens again."""


class Scheduler(Protocol):
    """What the core's loop needs."""

    def add(self, message: EngineRequest, seed: int) -> RequestOutput | None:
        """Take a request in; the output, if any, refuses it."""

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request wherever it is; None if there is no such request."""

    def schedule(self, now: float) -> SchedulerOutput | None:
        """Choose the next step's tokens; None if there is nothing to compute now."""

    def update(self, result: StepResult, now: float) -> StepOutputs:
        """Take in the oldest step's result and say what each request got."""

    def has_work(self) -> bool:
        """Say whether any request has not ended."""

    def stats(self) -> SchedulerStats:
        """Return the figures."""

    def wait_seconds(self, now: float) -> float:
        """Return how long waiting requests are held back on purpose, for company; 0 if they are not."""

    def crowd(self) -> StepFeatures | None:
        """Return the step that begins those who have come while nobody ran, if it may wait for more.

        One request alone waits for nobody, and neither does a step that is full.
        """

    def crowd_deadline(self) -> float:
        """Return by when the first of the crowd is promised its first token; infinite where none is."""

    def take_inter_token_seconds(self) -> list[float]:
        """Return and forget the intervals between output tokens since the last call."""

    def check_integrity(self) -> None:
        """Raise if blocks or rows are lost or used twice."""
