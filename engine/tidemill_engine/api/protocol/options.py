"""What both endpoints share: sampling, stop strings, n, streaming; and fitting a request into the context.

Knows ranges; does not know prompts or messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill_engine.api.protocol.fields import Fields, Range, show
from tidemill_engine.errors import ContextLengthExceeded, InvalidRequest
from tidemill_engine.messages import SamplingParams

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIASES = 1024
MAX_LOGPROBS = 20
MAX_MAX_TOKENS = 2**31 - 1
MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """What holds where a request is silent: OpenAI's defaults, or what the model's makers recommend."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """What the loaded model allows, as far as a request body can break it, and its sampling defaults."""

    max_model_len: int
    vocab_size: int
    max_sequences: int = 1024
    """Prompts times n in one HTTP request."""
    is_strict: bool = False
    """Refuse a max_tokens that does not fit behind the prompt instead of taking it as a cap."""
    defaults: SamplingDefaults = SamplingDefaults()


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to generate and how to answer; the same for every prompt and sibling of a request."""

    sampling: SamplingParams
    """`max_tokens` is what the client asked for; `fit_to_context` makes it what fits."""
    is_max_tokens_given: bool = False
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False


HARMLESS: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "modalities": (["text"], []),
    "prompt_logprobs": (False,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that are not supported and would change the output, each with the values that ask for nothing."""


def refuse_unsupported(fields: Fields) -> None:
    """Refuse what would silently change the output if it were ignored."""
    for key, harmless in HARMLESS.items():
        value = fields.get(key)
        if value is not None and value not in harmless:
            raise unsupported(key, value)
    if fields.get("tools") and fields.get("tool_choice") != "none":
        raise unsupported("tools", fields.get("tools"), ' (send tool_choice "none" to go on without)')
    best_of = fields.integer("best_of", 1, MAX_N)
    if best_of is not None and best_of != (fields.get("n") or 1):
        raise unsupported("best_of", best_of)


def unsupported(key: str, value: object, hint: str = "") -> InvalidRequest:
    """Build the error for a field that this engine does not support yet."""
    return InvalidRequest(
        f"{key} is not supported yet{hint}, got {show(value)}", param=key, code="unsupported_parameter"
    )


def parse_options(
    fields: Fields, limits: ModelLimits, *, default_max_tokens: int, num_logprobs: int | None
) -> GenerationOptions:
    """Read everything that completions and chat share."""
    refuse_unsupported(fields)
    stream = fields.boolean("stream")
    stream_options = fields.object("stream_options")
    if stream_options is not None and not stream:
        raise fields.refuse("stream_options", "is allowed only with stream true")
    return GenerationOptions(
        sampling=_parse_sampling(fields, limits, default_max_tokens, num_logprobs),
        is_max_tokens_given=any(fields.get(key) is not None for key in MAX_TOKENS_FIELDS),
        stop=_parse_stop(fields),
        n=fields.integer("n", 1, MAX_N) or 1,
        stream=stream,
        include_usage=stream_options.boolean("include_usage") if stream_options is not None else False,
    )


def _parse_sampling(
    fields: Fields, limits: ModelLimits, default_max_tokens: int, num_logprobs: int | None
) -> SamplingParams:
    max_tokens = fields.integer("max_tokens", 1, MAX_MAX_TOKENS)
    max_tokens = fields.integer("max_completion_tokens", 1, MAX_MAX_TOKENS) or max_tokens
    min_tokens = fields.integer("min_tokens", 0, limits.max_model_len) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise fields.refuse("min_tokens", f"must be at most max_tokens ({max_tokens})")
    defaults = limits.defaults
    top_k = fields.integer("top_k", -1, MAX_MAX_TOKENS)
    top_k = defaults.top_k if top_k is None else top_k
    return SamplingParams(
        max_tokens=max_tokens or default_max_tokens,
        temperature=fields.number("temperature", Range(low=0, high=2), default=defaults.temperature),
        top_p=fields.number("top_p", Range(low=0, high=1, above=True), default=defaults.top_p),
        top_k=0 if top_k < 0 else min(top_k, limits.vocab_size),
        min_p=fields.number("min_p", Range(low=0, high=1), default=defaults.min_p),
        presence_penalty=fields.number("presence_penalty", Range(low=-2, high=2), default=0.0),
        frequency_penalty=fields.number("frequency_penalty", Range(low=-2, high=2), default=0.0),
        repetition_penalty=fields.number(
            "repetition_penalty", Range(low=0, high=2, above=True), default=defaults.repetition_penalty
        ),
        logit_bias=_parse_logit_bias(fields, limits),
        seed=fields.integer("seed", -MAX_SEED - 1, MAX_SEED),
        min_tokens=min_tokens,
        ignore_eos=fields.boolean("ignore_eos"),
        stop_token_ids=_parse_stop_token_ids(fields, limits),
        num_logprobs=num_logprobs,
    )


def _parse_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    rule = f"must be a string or an array of up to {MAX_STOP_STRINGS} non-empty strings"
    if not isinstance(stops, list) or len(stops) > MAX_STOP_STRINGS:
        raise fields.refuse("stop", rule)
    if not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise fields.refuse("stop", f"{rule} of at most {MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(stops))


def _parse_stop_token_ids(fields: Fields, limits: ModelLimits) -> tuple[int, ...]:
    value = fields.get("stop_token_ids")
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKEN_IDS or not are_token_ids(value, limits):
        rule = f"must be an array of up to {MAX_STOP_TOKEN_IDS} token ids from 0 to {limits.vocab_size - 1}"
        raise fields.refuse("stop_token_ids", rule)
    return tuple(value)


def _parse_logit_bias(fields: Fields, limits: ModelLimits) -> dict[int, float]:
    biases = fields.object("logit_bias")
    if biases is None:
        return {}
    if len(biases.items()) > MAX_LOGIT_BIASES:
        raise InvalidRequest(f"logit_bias must have at most {MAX_LOGIT_BIASES} entries", param="logit_bias")
    parsed = {}
    for key, value in biases.items():
        is_number = key.isascii() and key.isdigit() and len(key) <= 10
        if not is_number or int(key) >= limits.vocab_size:
            message = f"logit_bias keys must be token ids from 0 to {limits.vocab_size - 1}, got {show(key)}"
            raise InvalidRequest(message, param="logit_bias")
        if value is None:
            raise biases.refuse(key, "must be a number from -100 to 100")
        parsed[int(key)] = biases.number(key, Range(low=-100, high=100), default=0.0)
    return parsed


def are_token_ids(values: list[Any], limits: ModelLimits) -> bool:
    """Say whether every value is an integer inside the vocabulary."""
    if not values:
        return True
    if set(map(type, values)) != {int}:
        return False
    return bool(min(values) >= 0 and max(values) < limits.vocab_size)


def fit_to_context(
    options: GenerationOptions, num_prompt_tokens: int, limits: ModelLimits, *, param: str
) -> SamplingParams:
    """Clamp max_tokens to what fits behind the prompt; refuse a prompt that leaves no room for one token.

    A larger `max_tokens` is a cap, not a demand: the answer then ends with finish_reason "length".
    Under strict limits it is a demand, and refused.
    """
    sampling = options.sampling
    room, context = limits.max_model_len - num_prompt_tokens, limits.max_model_len
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens, but this model's context of {context} tokens "
            f"must hold one more: shorten the prompt to at most {context - 1} tokens",
            param=param,
        )
    if limits.is_strict and options.is_max_tokens_given and sampling.max_tokens > room:
        raise ContextLengthExceeded(
            f"max_tokens is {sampling.max_tokens}, but behind the prompt's {num_prompt_tokens} tokens "
            f"only {room} fit into this model's context of {context}",
            param="max_tokens",
        )
    max_tokens = min(sampling.max_tokens, room)
    if max_tokens == sampling.max_tokens:
        return sampling
    return msgspec.structs.replace(
        sampling, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens)
    )
