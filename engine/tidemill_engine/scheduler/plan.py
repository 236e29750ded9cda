"""A step while it is being put together: what is left of the budget and what has been chosen.

Knows arrays only; turns into a `SchedulerOutput` once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tidemill_engine.step import (
    BlockAppends,
    IntArray,
    NewRow,
    SchedulerOutput,
    int_array,
)


@dataclass(kw_only=True)
class StepPlan:
    """Rows with their token counts, in the order in which they were chosen."""

    step_id: int
    token_budget: int
    rows: list[IntArray] = field(default_factory=list)
    counts: list[IntArray] = field(default_factory=list)
    appends: list[BlockAppends] = field(default_factory=list)
    new_rows: list[NewRow] = field(default_factory=list)
    num_preempted: int = 0

    @property
    def is_empty(self) -> bool:
        """Say whether nothing has been chosen."""
        return not self.rows

    def add(self, rows: IntArray, counts: IntArray, appends: BlockAppends) -> None:
        """Choose rows with their numbers of tokens; at least one row, every number at least 1."""
        self.rows.append(rows)
        self.counts.append(counts)
        self.appends.append(appends)
        self.token_budget -= int(counts.sum())

    def finish(self, num_computed_tokens: IntArray, num_tokens: IntArray) -> SchedulerOutput:
        """Make the output; the arguments are `[num_rows]` tables before this step counts as computed."""
        rows = np.concatenate(self.rows)
        counts = np.concatenate(self.counts)
        start_pos = num_computed_tokens[rows]
        ends = np.cumsum(counts)
        reaches_end = start_pos + counts == num_tokens[rows]
        return SchedulerOutput(
            step_id=self.step_id,
            rows=rows,
            num_scheduled_tokens=counts,
            num_draft_tokens=np.zeros_like(rows),
            start_pos=start_pos,
            adapter_slot=np.zeros_like(rows),
            logit_rows=int_array(ends[reaches_end] - 1),
            new_rows=tuple(self.new_rows),
            block_appends=_joined(self.appends),
        )


def _joined(appends: list[BlockAppends]) -> BlockAppends:
    """Put several appends behind one another."""
    return BlockAppends(
        rows=np.concatenate([append.rows for append in appends]),
        positions=np.concatenate([append.positions for append in appends]),
        block_ids=np.concatenate([append.block_ids for append in appends]),
    )
