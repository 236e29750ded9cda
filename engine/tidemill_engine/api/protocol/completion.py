"""The body of POST /v1/completions as a frozen value.

An empty prompt is refused here only where no token can come of it; whether a text is empty once tokenized is
known later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill_engine.api.protocol.fields import Fields, show
from tidemill_engine.api.protocol.options import (
    MAX_LOGPROBS,
    GenerationOptions,
    ModelLimits,
    are_token_ids,
    parse_options,
    unsupported,
)
from tidemill_engine.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 16

Prompt = str | tuple[int, ...]
"""Text to tokenize, or token ids that are already inside the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A valid request for completions of one or more prompts."""

    model: str | None
    prompts: tuple[Prompt, ...]
    options: GenerationOptions
    echo: bool = False
    is_echo_only: bool = False
    """max_tokens 0 beside echo: the prompt itself is the whole answer."""


def parse_completion(fields: Fields, limits: ModelLimits) -> CompletionRequest:
    """Check a completions body and return what it asks for."""
    model = fields.string("model")
    num_logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    echo = fields.boolean("echo")
    if echo and num_logprobs is not None:
        raise unsupported("echo", True, " together with logprobs")
    is_echo_only = echo and fields.get("max_tokens") == 0 and type(fields.get("max_tokens")) is int
    if is_echo_only:
        fields = Fields({**dict(fields.items()), "max_tokens": None})
    options = parse_options(fields, limits, default_max_tokens=DEFAULT_MAX_TOKENS, num_logprobs=num_logprobs)
    prompts = _parse_prompts(fields, limits)
    if len(prompts) * options.n > limits.max_sequences:
        message = f"prompts times n must be at most {limits.max_sequences}, got {len(prompts)} x {options.n}"
        raise InvalidRequest(message, param="prompt")
    return CompletionRequest(
        model=model, prompts=prompts, options=options, echo=echo, is_echo_only=is_echo_only
    )


def _parse_prompts(fields: Fields, limits: ModelLimits) -> tuple[Prompt, ...]:
    value = fields.get("prompt")
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if type(value[0]) is int:
            return (_token_prompt(value, limits),)
        return tuple(_one_of_many(item, limits) for item in value)
    raise fields.refuse(
        "prompt",
        "must be a string, an array of strings, an array of token ids or an array of arrays of token ids",
    )


def _one_of_many(item: Any, limits: ModelLimits) -> Prompt:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item:
        return _token_prompt(item, limits)
    message = f"every prompt must be a string or a non-empty array of token ids, got {show(item)}"
    raise InvalidRequest(message, param="prompt")


def _token_prompt(ids: list[Any], limits: ModelLimits) -> tuple[int, ...]:
    if not are_token_ids(ids, limits):
        wrong = next(value for value in ids if not are_token_ids([value], limits))
        message = f"prompt token ids must be integers from 0 to {limits.vocab_size - 1}, got {show(wrong)}"
        raise InvalidRequest(message, param="prompt")
    return tuple(ids)
