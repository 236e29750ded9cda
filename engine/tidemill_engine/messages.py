"""What the API process and the core process say to each other: one frame each way per step.

Knows the wire only: no sockets, no tensors, no HTTP. Both processes import it, so it stays free of torch and
aiohttp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request's tokens are chosen and when it ends; already validated by the API process.

    `temperature == 0` means greedy. `top_k == 0` means no limit. `seed is None` lets the core pick one.
    Stop strings are not here: they match on text, in the API process, which then aborts the request.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One sequence to generate (an HTTP request with n=4 is four of these: one `seed`, siblings 0..3)."""

    request_id: str
    handle: int
    """The request's number in the columns of `StepTokens`: chosen by the API process, never used twice."""
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_time: float
    """`time.monotonic()` at the end of the HTTP body, on this machine's clock, which both processes share."""
    sibling: int = 0
    tenant: str = ""
    """Who pays: fairness, cache isolation and accounting go by it. Only a trusted source names it."""
    tenant_weight: float | None = None
    """Its tenant's share from now on; None where the engine's own configuration counts."""
    priority: int = 0
    """Its class, least first; counts under every order but `fifo`."""
    ttft_slo_seconds: float | None = None
    itl_slo_seconds: float | None = None
    needs_all_positions: bool = False
    """Every prompt position must be computed (prompt logprobs), so the prefix cache is not read."""


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a request wherever it is; unknown ids are ignored, since it may have ended meanwhile."""

    request_id: str


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Finish the step in flight and exit with status 0."""


class ApiFrame(msgspec.Struct, frozen=True, kw_only=True):
    """API process -> core."""

    messages: list[EngineRequest | AbortRequest | Shutdown]


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities at one output position: the chosen token's first, then the most likely ones."""

    token_ids: list[int]
    logprobs: list[float]


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The tokens that one step gave to one request. The last one of a request carries `finish_reason`.

    A stop token (EOS, or one of `stop_token_ids`) is counted: it is the last of `token_ids`, and
    `stop_token_id` names it so that its text is left out. An error may come without any token.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    queue_seconds: float | None = None
    """Arrival to first scheduling; set on the first output only."""


class StepTokens(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The tokens that one step gave to requests of which there is nothing else to say, in columns.

    One token each: int64 handles and int32 token ids, native byte order, of one length. Several tokens of
    one request stand in their order. First tokens, last tokens and logprobs come as `RequestOutput`.
    """

    handles: bytes
    token_ids: bytes

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (handle, token id)."""
        handles = memoryview(self.handles).cast("q")
        return zip(handles, memoryview(self.token_ids).cast("i"), strict=True)


class CoreReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is loaded and warmed up; sent once, before any RequestOutput."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str
    load_seconds: float
    num_swap_blocks: int = 0


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Bytes of weights read so far, at most twice a second while loading."""

    loaded_bytes: int
    total_bytes: int


class CoreFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Loading failed or the core gives up; the core exits non-zero right after."""

    reason: str
    """CamelCase, fit for a condition: ModelNotFound, ModelLoadFailed, OutOfMemory, InternalError."""
    message: str


class CoreStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The core's figures, every 100 ms at most and at once when it turns idle. Counters only grow."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_total_blocks: int
    num_steps: int
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    waiting_prompt_tokens: int = 0
    num_swapped: int = 0
    is_admission_open: bool = True
    """Whether waiting requests may join those that run; shut for a while after a preemption."""
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    num_swap_blocks: int = 0
    num_free_swap_blocks: int = 0
    num_cached_blocks: int = 0
    """Free blocks that still hold a known prefix."""
    kv_fragmentation_ratio: float = 0.0
    """Share of neighbours in block tables that are not neighbours in the cache."""
    num_hopeless: int = 0
    """Waiting requests that will miss their TTFT SLO whatever is done."""
    effective_batch_tokens: int = 0
    """Tokens that a step may hold at present, by the running requests' inter-token SLOs."""
    padding_tokens: int = 0
    computed_tokens: int = 0
    """Tokens that all steps have computed, of prompts and of outputs."""
    step_coefficients: list[float] = []
    """The fitted step model, in the order of `FittedStep.coefficients`; empty while it is not fitted."""
    iteration_tokens: list[int] = []
    """Tokens of each step since the last report, for the histogram; at most a few hundred."""
    inter_token_seconds: list[float] = []
    """Interval / tokens per decode step since the last report."""


CoreMessage = RequestOutput | StepTokens | CoreReady | LoadProgress | CoreFailed | CoreStats


class CoreFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Core -> API process."""

    messages: list[CoreMessage]
