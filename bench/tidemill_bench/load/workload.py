"""Named workloads: how many prompt and output tokens each request has, drawn from a seed, and when it is due.

Knows token counts, ids and arrival times only: no network, no clock, no tokenizer. Prompts are token ids, so
that every engine that speaks the OpenAI completions API computes exactly as many tokens as the workload says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidemill_bench.traces import TRACES, load_trace

FIRST_PLAIN_TOKEN_ID = 300  # below lie special tokens and single bytes in the vocabularies that we meet
TRACE_PREFIX = "trace:"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Ranges of a workload, both ends included, in tokens; `shared_tokens` open every prompt alike."""

    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    shared_tokens: int = 0
    is_log_uniform: bool = False


SHAPES = {
    "single": Shape(prompt_tokens=(128, 128), output_tokens=(128, 128)),
    "uniform": Shape(prompt_tokens=(128, 128), output_tokens=(64, 64)),
    "medium": Shape(prompt_tokens=(100, 500), output_tokens=(50, 200)),
    "extreme": Shape(prompt_tokens=(10, 4000), output_tokens=(10, 1000), is_log_uniform=True),
    "prefix": Shape(prompt_tokens=(32, 32), output_tokens=(32, 32), shared_tokens=1024),
    "prefill": Shape(prompt_tokens=(2000, 2000), output_tokens=(1, 1)),
}
WORKLOADS = (*SHAPES, *(TRACE_PREFIX + name for name in TRACES))


@dataclass(frozen=True, kw_only=True)
class PlannedRequest:
    """One request to send: `prompt_token_ids` in, exactly `output_tokens` tokens out.

    `due_seconds` counts from the start of the run; None in a closed loop, where a request is due when a
    worker is free.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    due_seconds: float | None = None


def plan_requests(name: str, num_requests: int, vocab_size: int, seed: int) -> list[PlannedRequest]:
    """Draw the requests of workload `name`; the same arguments give the same requests.

    Raises ValueError for an unknown workload or a vocabulary too small to draw from.
    """
    if name not in SHAPES:
        raise ValueError(f"workload {name!r} is unknown; choose one of {', '.join(WORKLOADS)}")
    if vocab_size <= FIRST_PLAIN_TOKEN_ID:
        raise ValueError(
            f"vocabulary of {vocab_size} is too small: ids from {FIRST_PLAIN_TOKEN_ID} on are drawn"
        )
    shape = SHAPES[name]
    rng = np.random.default_rng(seed)
    prompts = _draw(rng, shape.prompt_tokens, num_requests, is_log=shape.is_log_uniform)
    outputs = _draw(rng, shape.output_tokens, num_requests, is_log=shape.is_log_uniform)
    shared = _tokens(rng, shape.shared_tokens, vocab_size)
    return [
        PlannedRequest(
            index=i, prompt_token_ids=shared + _tokens(rng, num_prompt, vocab_size), output_tokens=num_output
        )
        for i, (num_prompt, num_output) in enumerate(zip(prompts, outputs, strict=True))
    ]


@dataclass(frozen=True, kw_only=True)
class TraceCut:
    """How a trace is made to fit: time stretched, requests left out at the end or for their length."""

    stretch: float = 1.0
    max_requests: int | None = None
    max_total_tokens: int | None = None


def plan_trace(name: str, cut: TraceCut) -> list[PlannedRequest]:
    """Return the requests of a public trace, due when they came in; equal prefix blocks, equal tokens."""
    requests = load_trace(name.removeprefix(TRACE_PREFIX), stretch=cut.stretch)
    kept = [
        request
        for request in requests
        if cut.max_total_tokens is None
        or request.num_prompt_tokens + request.num_output_tokens <= cut.max_total_tokens
    ]
    return [
        PlannedRequest(
            index=index,
            prompt_token_ids=tuple(request.prompt_token_ids(index)),
            output_tokens=request.num_output_tokens,
            due_seconds=request.arrival_seconds,
        )
        for index, request in enumerate(kept[: cut.max_requests])
    ]


def at_poisson_times(requests: Sequence[PlannedRequest], rate: float, seed: int) -> list[PlannedRequest]:
    """Return the same requests, due by a Poisson process of `rate` a second."""
    gaps = np.random.default_rng(seed + 1).exponential(1.0 / rate, len(requests))
    return [
        replace(request, due_seconds=float(due))
        for request, due in zip(requests, np.cumsum(gaps), strict=True)
    ]


def _tokens(rng: np.random.Generator, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.integers(FIRST_PLAIN_TOKEN_ID, vocab_size, count).tolist())


def _draw(rng: np.random.Generator, bounds: tuple[int, int], count: int, *, is_log: bool) -> list[int]:
    low, high = bounds
    if is_log:
        drawn = np.exp(rng.uniform(np.log(low), np.log(high), count))
        return [int(x) for x in np.clip(np.rint(drawn), low, high)]
    return [int(x) for x in rng.integers(low, high, count, endpoint=True)]
