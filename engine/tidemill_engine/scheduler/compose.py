"""Puts rows into a step with the blocks that their tokens need.

Knows what a row lacks, the budget and free blocks. Does not know why a row is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_engine.step import IntArray, int_array

if TYPE_CHECKING:
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.scheduler.plan import StepPlan
    from tidemill_engine.scheduler.rows import RowTable


class Composer:
    """Adds decodes and chunks to a plan; without chunks (None) a prompt goes in whole or not at all."""

    def __init__(self, rows: RowTable, kv: KVCacheManager, *, max_chunk_tokens: int | None) -> None:
        self._rows = rows
        self._kv = kv
        self._max_chunk_tokens = max_chunk_tokens
        self.is_chunked = max_chunk_tokens is not None

    def num_prompt_tokens_left(self, plan: StepPlan) -> int:
        """Return how many tokens of prompts the step may still take."""
        return plan.num_chunk_tokens if self.is_chunked else plan.token_budget

    def chunk_of(self, num_tokens: int) -> int:
        """Return how much of so many tokens of one prompt a step takes at most."""
        return num_tokens if self._max_chunk_tokens is None else min(num_tokens, self._max_chunk_tokens)

    def add(self, plan: StepPlan, rows: IntArray, counts: IntArray, missing: IntArray | None = None) -> None:
        """Add rows to the step with the blocks that their tokens need, which must be free."""
        if len(rows) == 0:
            return
        if missing is None:
            missing = self._kv.num_missing(rows, self._rows.num_computed_tokens[rows] + counts)
        appends = self._kv.append_missing(rows, missing)
        if appends is None:
            raise RuntimeError("blocks that were counted as free are not")
        plan.add(rows, counts, appends)

    def add_chunk(self, plan: StepPlan, row: int) -> None:
        """Add as much of a row's prompt as budget and free blocks allow, maybe nothing."""
        computed = int(self._rows.num_computed_tokens[row])
        wanted = int(self._rows.num_tokens[row]) - computed
        count = min(
            self.chunk_of(wanted), self.num_prompt_tokens_left(plan), self._kv.room_for(row) - computed
        )
        if count <= 0 or (count < wanted and not self.is_chunked):
            return
        self.add(plan, int_array([row]), int_array([count]))
        plan.prefill_budget -= count
