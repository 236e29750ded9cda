"""The rows: a fixed number of places, each held by one request from its admission until no step can touch it.

Knows counts per row, in arrays, and which steps are in flight. Does not know policy or blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill_engine.request import Request
from tidemill_engine.step import BoolArray, FloatArray, IntArray, LongArray, int_array


@dataclass(frozen=True, kw_only=True, slots=True)
class InFlightStep:
    """A step whose result has not come: the rows that it reads, and those of them that will get a token."""

    step_id: int
    rows: IntArray
    sampled_rows: IntArray


class RowTable:
    """Arrays `[num_rows]`. `num_tokens` counts known tokens and those promised by steps in flight."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.requests: list[Request | None] = [None] * num_rows
        self.is_running: BoolArray = np.zeros(num_rows, dtype=np.bool_)
        self.num_tokens: IntArray = np.zeros(num_rows, dtype=np.int32)
        self.num_computed_tokens: IntArray = np.zeros(num_rows, dtype=np.int32)
        self.max_total_tokens: IntArray = np.zeros(num_rows, dtype=np.int32)
        self.num_in_flight: IntArray = np.zeros(num_rows, dtype=np.int32)
        self.order: LongArray = np.zeros(num_rows, dtype=np.int64)
        self.last_token_time: FloatArray = np.zeros(num_rows, dtype=np.float64)
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Return how many requests can still get a row."""
        return len(self._free)

    @property
    def num_running(self) -> int:
        """Return how many rows are running."""
        return int(np.count_nonzero(self.is_running))

    def take(self, request: Request) -> int:
        """Give a free row to a request, which starts at nothing computed."""
        row = self._free.pop()
        self.requests[row] = request
        self.is_running[row] = True
        self.num_tokens[row] = request.num_tokens
        self.num_computed_tokens[row] = 0
        self.max_total_tokens[row] = request.max_total_tokens
        self.order[row] = request.order
        self.last_token_time[row] = 0.0
        return row

    def stop(self, row: int) -> None:
        """Schedule a row no more; it stays taken."""
        self.is_running[row] = False

    def free(self, row: int) -> None:
        """Make a stopped row available again."""
        self.requests[row] = None
        self._free.append(row)

    def decoding(self) -> IntArray:
        """Return the running rows that lack exactly one token's computation, in order."""
        return self._in_order(self._num_uncomputed() == 1)

    def prefilling(self) -> IntArray:
        """Return the running rows that lack more than one token's computation, in order."""
        return self._in_order(self._num_uncomputed() > 1)

    def running(self) -> IntArray:
        """Return all running rows in order."""
        return self._in_order(self.is_running)

    def _num_uncomputed(self) -> IntArray:
        """Return how many tokens each running row must still compute before its next output; else 0."""
        wants_more = self.is_running & (self.num_tokens < self.max_total_tokens)
        return int_array(np.where(wants_more, self.num_tokens - self.num_computed_tokens, 0))

    def _in_order(self, mask: BoolArray) -> IntArray:
        """Return the chosen rows, least order first."""
        rows = np.flatnonzero(mask)
        return int_array(rows[np.argsort(self.order[rows], kind="stable")])
