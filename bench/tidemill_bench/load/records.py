"""One request's fate, as a value and as a line of JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

ErrorKind = Literal["connection", "timeout", "refused", "http", "stream", "event", "length"]
"""refused: 429 or 503. http: another status. stream: it stopped early. event: an error event came.
length: another number of tokens than was asked for."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a request counts as failed."""

    kind: ErrorKind
    message: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished request; seconds since the start of the run.

    Latencies count from `due_seconds`, when the request should have been sent, and not from `sent_seconds`:
    a client that falls behind must not hide what its users would have waited.
    """

    index: int
    due_seconds: float
    sent_seconds: float
    end_seconds: float
    chunk_seconds: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    failure: Failure | None = None

    @property
    def is_good(self) -> bool:
        """Say whether it ended in order and brought something."""
        return self.failure is None and bool(self.chunk_seconds)


def write_records(records: Iterable[Record], path: Path) -> None:
    """Write a line of JSON for each record."""
    lines = [json.dumps(asdict(record)) for record in records]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
