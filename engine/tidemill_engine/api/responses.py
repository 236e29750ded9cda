"""OpenAI's response objects, whole and in chunks, from deltas. Knows shapes only; does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemill_engine.api.sequence import Delta
from tidemill_engine.messages import TokenLogprobs

Json = dict[str, Any]
LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON can't say."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a request is charged for."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def to_json(self) -> Json:
        """Return OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What every object of one response carries."""

    response_id: str
    created: int
    model: str
    token_text: Callable[[int], str]

    def wrap(self, kind: str, choices: list[Json], **more: Json | None) -> Json:
        """Put choices, and what else is given, into an object of a kind such as `chat.completion`."""
        body = {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}
        return body | {"choices": choices, **more}


class ChatFormat:
    """How /v1/chat/completions writes its answer."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope

    def opening(self, index: int) -> list[Json]:
        """Return the choices that open a stream: the role, before any text."""
        return [_chat_chunk(index, {"role": "assistant", "content": ""})]

    def pieces(self, index: int, delta: Delta) -> list[Json]:
        """Return the choices that one delta gives, each for a chunk of its own; the finish comes alone."""
        pieces = []
        if delta.text or delta.logprobs:
            pieces.append(_chat_chunk(index, {"content": delta.text}, logprobs=self._logprobs(delta)))
        if delta.finish_reason is not None:
            pieces.append(
                _chat_chunk(index, {}, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
            )
        return pieces

    def whole(self, index: int, delta: Delta) -> Json:
        """Return the choice of an unstreamed answer."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, delta: Delta) -> Json | None:
        if not delta.logprobs:
            return None
        return {"content": [self._one(position) for position in delta.logprobs], "refusal": None}

    def _one(self, position: TokenLogprobs) -> Json:
        entries = [
            self._entry(token_id, logprob)
            for token_id, logprob in zip(position.token_ids, position.logprobs, strict=True)
        ]
        return entries[0] | {"top_logprobs": entries[1:]}

    def _entry(self, token_id: int, logprob: float) -> Json:
        text = self.envelope.token_text(token_id)
        return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(text.encode())}


class CompletionFormat:
    """How /v1/completions writes its answer."""

    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, envelope: Envelope, echoes: dict[int, str] | None = None) -> None:
        """Take the prompts to repeat before their completions, by choice index, where echo was asked for."""
        self.envelope = envelope
        self._echoes = echoes or {}
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> list[Json]:
        """Return the choices that open a stream: the echoed prompt, if any."""
        echo = self._echoes.get(index)
        return [self._choice(index, Delta(text=echo))] if echo else []

    def pieces(self, index: int, delta: Delta) -> list[Json]:
        """Return the choices that one delta gives, each for a chunk of its own."""
        return [] if delta.is_empty else [self._choice(index, delta)]

    def whole(self, index: int, delta: Delta) -> Json:
        """Return the choice of an unstreamed answer."""
        choice = self._choice(index, delta)
        return choice | {"text": self._echoes.get(index, "") + delta.text}

    def _choice(self, index: int, delta: Delta) -> Json:
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(index, delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _logprobs(self, index: int, delta: Delta) -> Json | None:
        if not delta.logprobs:
            return None
        text = self.envelope.token_text
        tokens, offsets, tops = [], [], []
        for position in delta.logprobs:
            token = text(position.token_ids[0])
            tokens.append(token)
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(token)
            pairs = zip(position.token_ids, position.logprobs, strict=True)
            tops.append({text(token_id): max(logprob, LEAST_LOGPROB) for token_id, logprob in pairs})
        chosen = [max(position.logprobs[0], LEAST_LOGPROB) for position in delta.logprobs]
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}


ResponseFormat = ChatFormat | CompletionFormat


def _chat_chunk(
    index: int,
    delta: Json,
    *,
    logprobs: Json | None = None,
    finish_reason: str | None = None,
    stop_reason: str | int | None = None,
) -> Json:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return choice if finish_reason is None else choice | {"stop_reason": stop_reason}


def model_object(name: str, created: int, max_model_len: int) -> Json:
    """Describe one served model."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "tidemill",
        "max_model_len": max_model_len,
    }
