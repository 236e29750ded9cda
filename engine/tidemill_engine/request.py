"""A request inside the core: its tokens, its place and when it ends.

Pure: knows tokens, limits and what it has been through. Does not know rows' contents, clocks or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tidemill_engine.messages import EngineRequest
    from tidemill_engine.scheduler.order import Rank
    from tidemill_engine.step import IntArray


class RequestStatus(Enum):
    """Where a request is. PREEMPTED and SWAPPED wait like WAITING, but have been running and keep outputs."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
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
    """One sequence from arrival to end. Only the scheduler changes it.

    While it holds a row, the row's arrays are ahead of `token_ids` and `num_tokens`, which follow when it
    leaves the row.
    """

    def __init__(self, message: EngineRequest, *, order: int, seed: int, limits: RequestLimits) -> None:
        self.request_id = message.request_id
        self.handle = message.handle
        self.token_ids: IntArray = np.asarray(message.prompt_token_ids, dtype=np.int32)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_tokens = len(self.token_ids)
        self.sampling = message.sampling
        self.sibling = message.sibling
        self.seed = seed
        self.arrival_time = message.arrival_time
        self.tenant = message.tenant
        self.tenant_weight = message.tenant_weight
        self.priority = message.priority
        self.ttft_slo_seconds = message.ttft_slo_seconds
        self.itl_slo_seconds = message.itl_slo_seconds
        self.needs_all_positions = message.needs_all_positions
        self.rank: Rank | None = None
        """Where it stands among those that wait, set by the waiting queue; kept while it runs."""
        self.tenant_index = -1
        """Its tenant's place in the fairness counters, from its arrival to its end; set by the queue."""
        self.order = order
        """Place in the order of arrival: constant."""
        self.max_total_tokens = min(
            self.num_prompt_tokens + message.sampling.max_tokens, limits.max_sequence_tokens
        )
        self.stop_token_ids = frozenset(message.sampling.stop_token_ids)
        if not message.sampling.ignore_eos:
            self.stop_token_ids |= limits.eos_token_ids
        self.status = RequestStatus.WAITING
        self.row: int | None = None
        self.chain: list[bytes] = []
        """Digests of its first full blocks, as far as anyone has asked for them."""
        self.prompt_digest: bytes | None = None
        """What equal prompts of one tenant have in common; made when it is first tried."""
        self.awaited: bytes | None = None
        """The digest of the first block that was not found when it was last tried."""
        self.swapped: IntArray | None = None
        """Its places in the CPU pool while it is swapped out, for its first `num_swapped_tokens`."""
        self.num_swapped_tokens = 0
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self.first_scheduled_time: float | None = None

    @property
    def is_finished(self) -> bool:
        """Say whether it has ended, for whatever reason."""
        return self.status is RequestStatus.FINISHED

    def leave_row(self, token_ids: IntArray) -> None:
        """Take its tokens so far back from the row that it held."""
        self.token_ids = token_ids.copy()
        self.num_tokens = len(token_ids)
        self.row = None
