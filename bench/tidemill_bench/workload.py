"""Named workloads: how many prompt and output tokens each request has, drawn from a seed.

Knows token counts and ids only: no network, no clock, no tokenizer. Prompts are token ids, so that every
engine that speaks the OpenAI completions API computes exactly as many tokens as the workload says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIRST_PLAIN_TOKEN_ID = 300  # below lie special tokens and single bytes in the vocabularies that we meet


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Ranges of a workload, both ends included, in tokens."""

    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    is_log_uniform: bool = False


SHAPES = {
    "single": Shape(prompt_tokens=(128, 128), output_tokens=(128, 128)),
    "uniform": Shape(prompt_tokens=(128, 128), output_tokens=(64, 64)),
    "medium": Shape(prompt_tokens=(100, 500), output_tokens=(50, 200)),
    "extreme": Shape(prompt_tokens=(10, 2000), output_tokens=(10, 1000), is_log_uniform=True),
}


@dataclass(frozen=True, kw_only=True)
class PlannedRequest:
    """One request to send: `prompt_token_ids` in, exactly `output_tokens` tokens out."""

    index: int
    prompt_token_ids: tuple[int, ...]
    output_tokens: int


def plan_requests(name: str, num_requests: int, vocab_size: int, seed: int) -> list[PlannedRequest]:
    """Draw the requests of workload `name`; the same arguments give the same requests.

    Raises ValueError for an unknown workload or a vocabulary too small to draw from.
    """
    if name not in SHAPES:
        raise ValueError(f"workload {name!r} is unknown; choose one of {', '.join(SHAPES)}")
    if vocab_size <= FIRST_PLAIN_TOKEN_ID:
        raise ValueError(
            f"vocabulary of {vocab_size} is too small: ids from {FIRST_PLAIN_TOKEN_ID} on are drawn"
        )
    shape = SHAPES[name]
    rng = np.random.default_rng(seed)
    prompts = _draw(rng, shape.prompt_tokens, num_requests, is_log=shape.is_log_uniform)
    outputs = _draw(rng, shape.output_tokens, num_requests, is_log=shape.is_log_uniform)
    return [
        PlannedRequest(
            index=i,
            prompt_token_ids=tuple(rng.integers(FIRST_PLAIN_TOKEN_ID, vocab_size, num_prompt).tolist()),
            output_tokens=num_output,
        )
        for i, (num_prompt, num_output) in enumerate(zip(prompts, outputs, strict=True))
    ]


def _draw(rng: np.random.Generator, bounds: tuple[int, int], count: int, *, is_log: bool) -> list[int]:
    low, high = bounds
    if is_log:
        drawn = np.exp(rng.uniform(np.log(low), np.log(high), count))
        return [int(x) for x in np.clip(np.rint(drawn), low, high)]
    return [int(x) for x in rng.integers(low, high, count, endpoint=True)]
