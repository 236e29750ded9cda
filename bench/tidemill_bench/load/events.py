"""What a streamed answer says, read from its bytes after the run. Pure: bytes with times in, values out.

Knows server-sent events and OpenAI's chunks. Parsing waits until the run is over, so that it neither delays
nor blurs the times of other streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Answer:
    """One stream: when each chunk with output came, what was charged, whether it ended in order."""

    chunk_seconds: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    is_done: bool = False
    error: str | None = None


def read_answer(reads: Sequence[tuple[float, bytes]]) -> Answer:
    """Understand a stream from what was read and when; an event counts when its last byte has come."""
    answer = Answer()
    for seconds, data in _data_lines(reads):
        if data == b"[DONE]":
            answer.is_done = True
            break
        try:
            event = json.loads(data)
        except ValueError:
            answer.error = f"not JSON: {data[:200]!r}"
            break
        if "error" in event:
            answer.error = f"error event: {event['error']}"
            break
        if _has_output(event):
            answer.chunk_seconds.append(seconds)
        usage = event.get("usage")
        if isinstance(usage, dict):
            answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
            answer.output_tokens = usage.get("completion_tokens", answer.output_tokens)
    return answer


def _data_lines(reads: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield the content of each `data:` line with the time at which it was complete."""
    pending = b""
    for seconds, data in reads:
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield seconds, line[5:].strip()


def _has_output(event: dict[str, Any]) -> bool:
    """Say whether an event brings tokens: not the role that opens a chat, not an end without text.

    A completion chunk without text and without an end counts: its tokens are part of a character.
    """
    for choice in event.get("choices") or ():
        delta = choice.get("delta")
        if delta is None:
            if choice.get("text") or choice.get("finish_reason") is None:
                return True
        elif any(value for name, value in delta.items() if name != "role"):
            return True
    return False
