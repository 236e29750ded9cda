"""From a `SchedulerOutput` to the flat arrays that a model reads, in numpy.

Knows the persistent tables on the device's side (tokens and blocks per row) and index arithmetic. Does not
know models, tensors or scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.step import IntArray, LongArray, int_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_engine.step import BlockAppends, NewRow, SchedulerOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One step, flat. T tokens of n rows; row i owns tokens `query_start_loc[i] .. query_start_loc[i + 1]`.

    `input_ids [T]`, `positions [T]`, `slot_mapping [T]` (block id * block size + offset), `row_index [n]`
    into `block_table [num_rows, max_blocks]` (the persistent table itself), `query_start_loc [n + 1]`,
    `seq_lens [n]` (context including this step), `logit_tokens [m]` into the flat tokens and `logit_rows
    [m]` the rows they belong to. The first `num_decodes` rows have one token each.
    """

    input_ids: LongArray
    positions: LongArray
    slot_mapping: LongArray
    row_index: IntArray
    block_table: IntArray
    query_start_loc: IntArray
    seq_lens: IntArray
    logit_tokens: LongArray
    logit_rows: IntArray
    num_decodes: int
    block_size: int


class RowTables:
    """What the device's side remembers of each row between steps; only additions cross from the scheduler."""

    def __init__(self, *, num_rows: int, max_tokens_per_row: int, block_size: int) -> None:
        self.block_size = block_size
        self.token_ids = np.zeros((num_rows, max_tokens_per_row), dtype=np.int32)
        self.num_tokens = np.zeros(num_rows, dtype=np.int32)
        max_blocks = -(-max_tokens_per_row // block_size)
        self.block_table = np.zeros((num_rows, max_blocks), dtype=np.int32)

    def apply(self, output: SchedulerOutput) -> None:
        """Take in the step's new rows and appended blocks."""
        for new_row in output.new_rows:
            self._start(new_row)
        self._append_blocks(output.block_appends)

    def _start(self, new_row: NewRow) -> None:
        """Replace what a row held by a request's tokens."""
        count = len(new_row.token_ids)
        self.token_ids[new_row.row, :count] = new_row.token_ids
        self.num_tokens[new_row.row] = count

    def _append_blocks(self, appends: BlockAppends) -> None:
        """Write the appended blocks into the rows' tables."""
        self.block_table[appends.rows, appends.positions] = appends.block_ids

    def append_tokens(self, rows: IntArray, token_ids: IntArray) -> None:
        """Put one sampled token at the end of each row; beyond the longest sequence it is dropped."""
        places = self.num_tokens[rows]
        fits = places < self.token_ids.shape[1]
        if not fits.all():
            rows, places, token_ids = rows[fits], places[fits], token_ids[fits]
        self.token_ids[rows, places] = token_ids
        self.num_tokens[rows] = places + 1


def copy_in_order(pairs: IntArray, copy: Callable[[IntArray, IntArray], None]) -> None:
    """Call `copy(sources, targets)` so that the pairs `[n, 2]` take effect one after another.

    All at once where no source is an earlier target, which is the rule; else one by one.
    """
    if len(pairs) == 0:
        return
    sources, targets = pairs[:, 0], pairs[:, 1]
    if np.isin(sources, targets).any() or len(np.unique(targets)) < len(targets):
        for index in range(len(pairs)):
            copy(sources[index : index + 1], targets[index : index + 1])
    else:
        copy(sources, targets)


def build_batch(output: SchedulerOutput, tables: RowTables) -> Batch:
    """Lay one step's tokens out flat. The tables must have taken in this output already."""
    counts = output.num_scheduled_tokens
    is_chunk = counts != 1
    has_chunks = bool(is_chunk.any())
    if has_chunks:
        query_start_loc = int_array(np.concatenate([[0], np.cumsum(counts)]))
        token_rows = np.repeat(output.rows, counts)
        shift = np.repeat(output.start_pos - query_start_loc[:-1], counts)
        positions = np.arange(query_start_loc[-1], dtype=np.int64) + shift
    else:
        query_start_loc = np.arange(len(counts) + 1, dtype=np.int32)
        token_rows = output.rows
        positions = output.start_pos.astype(np.int64)
    block_ids = tables.block_table[token_rows, positions // tables.block_size].astype(np.int64)
    return Batch(
        input_ids=tables.token_ids[token_rows, positions].astype(np.int64),
        positions=positions,
        slot_mapping=block_ids * tables.block_size + positions % tables.block_size,
        row_index=output.rows,
        block_table=tables.block_table,
        query_start_loc=query_start_loc,
        seq_lens=output.start_pos + counts,
        logit_tokens=output.logit_rows.astype(np.int64),
        logit_rows=token_rows[output.logit_rows],
        num_decodes=int(np.argmax(is_chunk)) if has_chunks else len(counts),
        block_size=tables.block_size,
    )
