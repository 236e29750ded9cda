"""A request inside the core: its tokens, its place and when it ends.

Pure: knows tokens and limits. Does not know blocks, rows' contents, clocks or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tidemill_engine.messages import EngineRequest, FinishReason
    from tidemill_engine.scheduler.order import Rank
    from tidemill_engine.step import IntArray


class RequestStatus(Enum):
    """Where a request is. PREEMPTED waits like WAITING, but has been running and keeps its outputs."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What the loaded model and its cache can serve."""

    vocab_size: int
    max_model_len: int
    max_cached_tokens: int
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def max_sequence_tokens(self) -> int:
        """Return the longest sequence that can be computed here."""
        return min(self.max_model_len, self.max_cached_tokens)


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Why a request has ended."""

    reason: FinishReason
    stop_token_id: int | None = None


def refusal(message: EngineRequest, limits: RequestLimits) -> str | None:
    """Return why a request can never run here, or None if it can."""
    prompt = message.prompt_token_ids
    sampling = message.sampling
    if not prompt:
        return "the prompt holds no token"
    if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        return f"prompt token ids must be between 0 and {limits.vocab_size - 1}"
    if sampling.max_tokens < 1:
        return f"max_tokens must be at least 1, not {sampling.max_tokens}"
    if any(not 0 <= token < limits.vocab_size for token in sampling.logit_bias):
        return f"logit_bias token ids must be between 0 and {limits.vocab_size - 1}"
    if len(prompt) + 1 > limits.max_sequence_tokens:
        return (
            f"the prompt of {len(prompt)} tokens and one more do not fit: the context holds "
            f"{limits.max_model_len} tokens and the KV cache {limits.max_cached_tokens}"
        )
    return None


class Request:
    """One sequence from arrival to end. Only the scheduler changes it."""

    def __init__(self, message: EngineRequest, *, order: int, seed: int, limits: RequestLimits) -> None:
        self.request_id = message.request_id
        self.prompt_token_ids: IntArray = np.asarray(message.prompt_token_ids, dtype=np.int32)
        self.output_token_ids: list[int] = []
        self.sampling = message.sampling
        self.sibling = message.sibling
        self.seed = seed
        self.arrival_time = message.arrival_time
        self.tenant = message.tenant
        self.priority = message.priority
        self.ttft_slo_seconds = message.ttft_slo_seconds
        self.itl_slo_seconds = message.itl_slo_seconds
        self.rank: Rank | None = None
        """Where it stands among those that wait, set by the waiting queue; kept while it runs."""
        self.tenant_index = -1
        """Its tenant's place in the fairness counters, from its arrival to its end; set by the queue."""
        self.order = order
        """Place in the queue: constant, kept through preemptions, least first."""
        self.max_total_tokens = min(
            self.num_prompt_tokens + message.sampling.max_tokens, limits.max_sequence_tokens
        )
        self.status = RequestStatus.WAITING
        self.row: int | None = None
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        self.was_answered = False
        self._stop_token_ids = frozenset(message.sampling.stop_token_ids)
        if not message.sampling.ignore_eos:
            self._stop_token_ids |= limits.eos_token_ids

    @property
    def num_prompt_tokens(self) -> int:
        """Return the length of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Return the length of prompt and outputs so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_finished(self) -> bool:
        """Say whether it has ended, for whatever reason."""
        return self.status is RequestStatus.FINISHED

    def all_token_ids(self) -> IntArray:
        """Return prompt and outputs so far."""
        if not self.output_token_ids:
            return self.prompt_token_ids
        outputs = np.asarray(self.output_token_ids, dtype=np.int32)
        return np.concatenate([self.prompt_token_ids, outputs])

    def append(self, token_id: int) -> Finish | None:
        """Take one output token and say whether it was the last."""
        self.output_token_ids.append(token_id)
        if token_id in self._stop_token_ids and len(self.output_token_ids) >= self.sampling.min_tokens:
            return Finish(reason="stop", stop_token_id=token_id)
        if self.num_tokens >= self.max_total_tokens:
            return Finish(reason="length")
        return None
