"""The rows: a fixed number of places, each held by one request from its admission until no step can touch it.

Knows tokens, counts and ends per row, in arrays, and which steps are in flight. Does not know policy or
blocks. What is done for all rows at each step is done in arrays; a request's own object is touched when it
comes and when it goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill_engine.request import Request
from tidemill_engine.step import BoolArray, FloatArray, IntArray, LongArray, int_array

MAX_STOP_COLUMNS = 8
NO_TOKEN = -1
NEVER_HASHED = 1 << 30
"""More blocks than any row has: nothing of such a row is published."""
LONG_AGO = -(1 << 40)


@dataclass(frozen=True, kw_only=True, slots=True)
class InFlightStep:
    """A step whose result has not come: the rows that it reads, and how far each is computed after it."""

    step_id: int
    rows: IntArray
    ends: IntArray
    num_compacted: int = 0
    """How many rows it moves together; what they held before is free once it has retired."""


class RowTable:
    """Arrays `[num_rows]`. `num_tokens` counts known tokens and those promised by steps in flight."""

    def __init__(self, num_rows: int, max_tokens_per_row: int) -> None:
        self.num_rows = num_rows
        self.requests: list[Request | None] = [None] * num_rows
        self.token_ids: IntArray = np.zeros((num_rows, max_tokens_per_row), dtype=np.int32)
        self.is_running: BoolArray = np.zeros(num_rows, dtype=np.bool_)
        self.is_open: BoolArray = np.zeros(num_rows, dtype=np.bool_)
        """Whether the row's request wants what steps in flight bring; a preempted one's does."""
        self.num_tokens = _ints(num_rows)
        self.num_known_tokens = _ints(num_rows)
        self.num_computed_tokens = _ints(num_rows)
        self.num_settled_tokens = _ints(num_rows)
        """How far the row is computed by steps whose results have come."""
        self.num_hashed_blocks = _ints(num_rows)
        self.num_prompt_tokens = _ints(num_rows)
        self.min_total_tokens = _ints(num_rows)
        """Up to which length no stop token counts."""
        self.max_total_tokens = _ints(num_rows)
        self.num_in_flight = _ints(num_rows)
        self.tenant_index = _ints(num_rows)
        self.handles: LongArray = np.zeros(num_rows, dtype=np.int64)
        self.resumed_at_step: LongArray = np.full(num_rows, LONG_AGO, dtype=np.int64)
        self.last_token_time: FloatArray = np.zeros(num_rows, dtype=np.float64)
        self.itl_slo_seconds: FloatArray = np.full(num_rows, np.inf, dtype=np.float64)
        self.is_special: BoolArray = np.zeros(num_rows, dtype=np.bool_)
        """Whether the row's next output says more than a token: its first one, and any with logprobs."""
        self.stop_columns: list[IntArray] = []
        self.many_stops: dict[int, frozenset[int]] = {}
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Return how many requests can still get a row."""
        return len(self._free)

    @property
    def num_running(self) -> int:
        """Return how many rows are running."""
        return int(np.count_nonzero(self.is_running))

    def take(self, request: Request, num_computed_tokens: int) -> int:
        """Give a free row to a request of which so many tokens are in the cache already."""
        row = self._free.pop()
        request.row = row
        self.requests[row] = request
        count = request.num_tokens
        self.token_ids[row, :count] = request.token_ids
        self.is_running[row] = self.is_open[row] = True
        self.num_tokens[row] = self.num_known_tokens[row] = count
        self.num_computed_tokens[row] = self.num_settled_tokens[row] = num_computed_tokens
        self.num_hashed_blocks[row] = NEVER_HASHED
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.min_total_tokens[row] = request.num_prompt_tokens + request.sampling.min_tokens
        self.max_total_tokens[row] = request.max_total_tokens
        self.tenant_index[row] = request.tenant_index
        self.handles[row] = request.handle
        self.resumed_at_step[row] = LONG_AGO
        self.last_token_time[row] = 0.0
        slo = request.itl_slo_seconds
        self.itl_slo_seconds[row] = np.inf if slo is None else slo
        self.is_special[row] = True
        self._set_stops(row, request.stop_token_ids)
        return row

    def request_at(self, row: int) -> Request:
        """Return the request that holds a row."""
        request = self.requests[row]
        if request is None:
            raise RuntimeError(f"row {row} is free")
        return request

    def known_token_ids(self, row: int) -> IntArray:
        """Return a row's tokens as far as they are known."""
        return self.token_ids[row, : self.num_known_tokens[row]]

    def stop(self, row: int) -> None:
        """Schedule a row no more; it stays taken."""
        self.is_running[row] = False

    def close(self, row: int) -> None:
        """Note that nobody wants what this row still brings."""
        self.is_open[row] = False

    def free(self, row: int) -> None:
        """Make a stopped row available again; its request takes its tokens along."""
        request = self.request_at(row)
        request.leave_row(self.known_token_ids(row))
        self.requests[row] = None
        self.is_open[row] = False
        self.many_stops.pop(row, None)
        self._free.append(row)

    def lacking(self) -> IntArray:
        """Return how many tokens each running row must compute before its next output, else 0."""
        lacking = self.num_tokens - self.num_computed_tokens
        lacking *= self.is_running & (self.num_tokens < self.max_total_tokens)
        return lacking

    def prefilling(self) -> IntArray:
        """Return the running rows that lack more than one token's computation."""
        return int_array(np.flatnonzero(self.lacking() > 1))

    def running(self) -> IntArray:
        """Return all running rows."""
        return int_array(np.flatnonzero(self.is_running))

    def append_token(self, rows: IntArray, token_ids: IntArray) -> tuple[BoolArray, BoolArray]:
        """Give each row a token; say which of these are stops, and which rows may have no more."""
        lengths = self.num_known_tokens[rows]
        self.token_ids[rows, lengths] = token_ids
        lengths += 1
        self.num_known_tokens[rows] = lengths
        is_full: BoolArray = lengths >= self.max_total_tokens[rows]
        is_stop: BoolArray = np.zeros(len(rows), dtype=np.bool_)
        for column in self.stop_columns:
            is_stop |= column[rows] == token_ids
        for row, stops in self.many_stops.items():
            is_stop |= (rows == row) & np.isin(token_ids, list(stops))
        if is_stop.any():
            is_stop &= lengths >= self.min_total_tokens[rows]
        return is_stop, is_full

    def _set_stops(self, row: int, stops: frozenset[int]) -> None:
        """Note a row's stop tokens, one per column, or aside where they are many."""
        for column in self.stop_columns:
            column[row] = NO_TOKEN
        if len(stops) > MAX_STOP_COLUMNS:
            self.many_stops[row] = stops
            return
        for index, token_id in enumerate(sorted(stops)):
            if index == len(self.stop_columns):
                self.stop_columns.append(np.full(self.num_rows, NO_TOKEN, dtype=np.int32))
            self.stop_columns[index][row] = token_id


def _ints(count: int) -> IntArray:
    """Return that many zeros."""
    return np.zeros(count, dtype=np.int32)
