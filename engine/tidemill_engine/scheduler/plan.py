"""A step while it is being put together: what is left of the budget and what has been chosen.

Knows arrays and what a row begins with; turns into a `SchedulerOutput` once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.step import (
    BlockAppends,
    IntArray,
    LongArray,
    NewRow,
    SchedulerOutput,
    int_array,
    no_pairs,
)

if TYPE_CHECKING:
    from tidemill_engine.kv import TableChange
    from tidemill_engine.request import Request


@dataclass(kw_only=True)
class StepPlan:
    """Rows with their token counts, in the order in which they were chosen.

    `prefill_budget` is what is left for chunks of prompts, never more than `token_budget`.
    """

    step_id: int
    now: float
    token_budget: int
    prefill_budget: int
    rows: list[IntArray] = field(default_factory=list)
    counts: list[IntArray] = field(default_factory=list)
    appends: list[BlockAppends] = field(default_factory=list)
    new_rows: list[NewRow] = field(default_factory=list)
    swap_out: list[IntArray] = field(default_factory=list)
    swap_in: list[IntArray] = field(default_factory=list)
    block_copies: list[IntArray] = field(default_factory=list)
    num_preempted: int = 0
    num_compacted: int = 0
    num_padding_tokens: int = 0
    num_padding_pairs: int = 0

    @property
    def is_empty(self) -> bool:
        """Say whether nothing has been chosen."""
        return not self.rows

    @property
    def num_chunk_tokens(self) -> int:
        """Return how many tokens of prompts may still be added."""
        return min(self.token_budget, self.prefill_budget)

    def add(self, rows: IntArray, counts: IntArray, appends: BlockAppends) -> None:
        """Choose rows with their numbers of tokens; at least one row, every number at least 1."""
        self.rows.append(rows)
        self.counts.append(counts)
        if len(appends.rows):
            self.appends.append(appends)
        self.token_budget -= int(counts.sum())

    def fork(self, change: TableChange) -> None:
        """Begin a row with shared and copied blocks, or move its blocks."""
        self.appends.append(change.appends)
        self.block_copies.append(change.copies)

    def swap_back(self, change: TableChange) -> None:
        """Begin a row with blocks from the CPU pool."""
        self.appends.append(change.appends)
        self.swap_in.append(change.copies)

    def announce(self, request: Request, row: int) -> None:
        """Tell the runner whose tokens a row holds from this step on."""
        self.new_rows.append(
            NewRow(
                row=row,
                token_ids=request.token_ids,
                num_prompt_tokens=request.num_prompt_tokens,
                sampling=request.sampling,
                seed=request.seed,
                sibling=request.sibling,
            )
        )

    def finish(self, num_computed_tokens: IntArray, num_tokens: IntArray) -> PlannedStep:
        """Make the output; the arguments are `[num_rows]` tables before this step counts as computed."""
        rows, counts = _joined(self.rows), _joined(self.counts)
        start_pos = num_computed_tokens[rows]
        ends = start_pos + counts
        samples = (ends == num_tokens[rows]).nonzero()[0]
        zeros = np.zeros_like(rows)
        output = SchedulerOutput(
            step_id=self.step_id,
            rows=rows,
            num_scheduled_tokens=counts,
            num_draft_tokens=zeros,
            start_pos=start_pos,
            adapter_slot=zeros,
            logit_rows=int_array(counts.cumsum()[samples] - 1),
            new_rows=tuple(self.new_rows),
            block_appends=_joined_appends(self.appends),
            swap_out=_joined_pairs(self.swap_out),
            swap_in=_joined_pairs(self.swap_in),
            block_copies=_joined_pairs(self.block_copies),
            num_padding_tokens=self.num_padding_tokens,
            num_padding_pairs=self.num_padding_pairs,
        )
        return PlannedStep(output=output, ends=ends, samples=samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """A step's output, how far each of its rows is computed after it, and which of them get a token."""

    output: SchedulerOutput
    ends: IntArray
    samples: LongArray


def _joined(arrays: list[IntArray]) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _joined_pairs(pairs: list[IntArray]) -> IntArray:
    return _joined(pairs) if pairs else no_pairs()


def _joined_appends(appends: list[BlockAppends]) -> BlockAppends:
    """Put several appends behind one another."""
    if not appends:
        return BlockAppends()
    if len(appends) == 1:
        return appends[0]
    return BlockAppends(
        rows=np.concatenate([append.rows for append in appends]),
        positions=np.concatenate([append.positions for append in appends]),
        block_ids=np.concatenate([append.block_ids for append in appends]),
    )
