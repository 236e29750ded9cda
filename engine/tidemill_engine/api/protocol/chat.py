"""The body of POST /v1/chat/completions as a frozen value. Knows messages, not the chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill_engine.api.protocol.fields import Fields, kind_of, show
from tidemill_engine.api.protocol.options import MAX_LOGPROBS, GenerationOptions, ModelLimits, parse_options
from tidemill_engine.errors import InvalidRequest

MAX_MESSAGES = 4096
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles that a client may send, and what the chat template calls them."""


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """One turn of the conversation, its content already joined to one text."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A valid request for the next turn of a conversation."""

    model: str | None
    messages: tuple[ChatMessage, ...]
    options: GenerationOptions


def parse_chat(fields: Fields, limits: ModelLimits) -> ChatRequest:
    """Check a chat body and return what it asks for."""
    model = fields.string("model")
    options = parse_options(
        fields, limits, default_max_tokens=limits.max_model_len, num_logprobs=_num_logprobs(fields)
    )
    return ChatRequest(model=model, messages=_parse_messages(fields), options=options)


def _num_logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise fields.refuse("top_logprobs", "is allowed only with logprobs true")
    return (top or 0) if wanted else None


def _parse_messages(fields: Fields) -> tuple[ChatMessage, ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise fields.refuse("messages", f"must be an array of 1 to {MAX_MESSAGES} messages")
    return tuple(_parse_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def _parse_message(message: Any, path: str) -> ChatMessage:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{path} must be an object, got {kind_of(message)}", param=path)
    fields = Fields(message, path)
    role = fields.string("role")
    if role not in ROLES:
        raise fields.refuse("role", f"must be one of {', '.join(ROLES)}")
    for key in ("tool_calls", "function_call", "audio"):
        if fields.get(key):
            raise fields.refuse(key, "is not supported yet")
    return ChatMessage(role=ROLES[role], content=_parse_content(fields))


def _parse_content(fields: Fields) -> str:
    content = fields.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise fields.refuse("content", "must be a string or a non-empty array of text parts")
    texts = []
    for part in content:
        is_text = isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        if not is_text:
            name = fields.name("content")
            raise InvalidRequest(
                f'{name} may hold parts {{"type": "text", "text": "..."}} only, got {show(part)}', param=name
            )
        texts.append(part["text"])
    return "\n".join(texts)
