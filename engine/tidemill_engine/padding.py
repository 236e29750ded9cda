"""What a padded batch computes for nobody, laid out as tokens of rows that are no request's.

Knows a step's flat arrays and the spare rows of the device's tables. Does not know why anything is padded.
Padding of prompts is chunks in one spare row, all of whose blocks are the spare block. Padding of decodes is
sequences of one token, each in a spare row of its own whose blocks lie all over the cache: keys and values
that were written are read from as many places as a padded batch would read them from, and only the last
block, into which the token is written, is the spare one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.step import int_array

if TYPE_CHECKING:
    from tidemill_engine.batch import Batch, RowTables
    from tidemill_engine.step import IntArray


def num_rows_with_padding(num_rows: int) -> int:
    """Return how many rows tables need for so many requests and everything that may be padding."""
    return 2 * num_rows + 1


class PaddingRows:
    """The rows of tables that come after those of requests; `spare_block` is a block no request gets."""

    def __init__(self, tables: RowTables, *, num_request_rows: int, spare_block: int) -> None:
        self._table = tables.block_table
        self._block_size = tables.block_size
        self._chunk_row = num_request_rows
        self._decode_rows = np.arange(num_request_rows + 1, len(tables.block_table), dtype=np.int32)
        self._spare_block = spare_block
        self._max_length = tables.token_ids.shape[1]
        self._table[self._chunk_row] = spare_block

    def joined(self, batch: Batch, num_tokens: int, num_pairs: int) -> Batch:
        """Return the batch with so many tokens more, which attend to so many pairs together.

        Beside chunks padding is chunks; else each token is a sequence of its own. Without a token there are
        no pairs.
        """
        if num_tokens == 0:
            return batch
        if batch.num_decodes == len(batch.seq_lens):
            length = min(max(1, num_pairs // num_tokens), self._max_length)
            rows = self._spread(num_tokens, length)
            padding = self._dummies(batch, rows, [(length - 1, 1)] * num_tokens)
            return _joined(padding, batch, num_decodes=num_tokens)
        count = min(num_tokens, self._max_length)
        pieces = [min(count, num_tokens - done) for done in range(0, num_tokens, count)]
        start = max(0, num_pairs // num_tokens - count // 2)
        spans = [(min(start, self._max_length - piece), piece) for piece in pieces]
        rows = int_array([self._chunk_row] * len(spans))
        return _joined(batch, self._dummies(batch, rows, spans), num_decodes=0)

    def _spread(self, count: int, length: int) -> IntArray:
        """Return a row for each of so many sequences, their blocks counted down from the last one in use.

        Requests' blocks are mostly counted up, so that no kernel takes them for a shared prefix.
        """
        rows = self._decode_rows[np.arange(count) % len(self._decode_rows)]
        width = -(-length // self._block_size)
        num_used = 1 + int(self._table[: self._chunk_row].max(initial=0))
        places = np.arange(count * width).reshape(count, width) % num_used
        self._table[rows, :width] = num_used - 1 - places
        self._table[rows, width - 1] = self._spare_block
        return rows

    def _dummies(self, batch: Batch, rows: IntArray, spans: list[tuple[int, int]]) -> Batch:
        """Return a batch of sequences (start, count) in these rows."""
        starts, counts = int_array([span[0] for span in spans]), int_array([span[1] for span in spans])
        positions = np.concatenate(
            [np.arange(start, start + count, dtype=np.int64) for start, count in spans]
        )
        token_rows = np.repeat(rows, counts)
        blocks = self._table[token_rows, positions // self._block_size].astype(np.int64)
        return replace(
            batch,
            input_ids=np.zeros_like(positions),
            positions=positions,
            slot_mapping=blocks * self._block_size + positions % self._block_size,
            row_index=rows,
            query_start_loc=int_array(np.concatenate([[0], np.cumsum(counts)])),
            seq_lens=starts + counts,
            logit_tokens=np.empty(0, dtype=np.int64),
            logit_rows=int_array(),
            num_decodes=0,
        )


def _joined(first: Batch, second: Batch, *, num_decodes: int) -> Batch:
    """Put two batches behind one another; `num_decodes` come on top of those that the batches have."""
    num_first = int(first.query_start_loc[-1])
    return replace(
        first,
        input_ids=np.concatenate([first.input_ids, second.input_ids]),
        positions=np.concatenate([first.positions, second.positions]),
        slot_mapping=np.concatenate([first.slot_mapping, second.slot_mapping]),
        row_index=np.concatenate([first.row_index, second.row_index]),
        query_start_loc=np.concatenate([first.query_start_loc, second.query_start_loc[1:] + num_first]),
        seq_lens=np.concatenate([first.seq_lens, second.seq_lens]),
        logit_tokens=np.concatenate([first.logit_tokens, second.logit_tokens + num_first]),
        logit_rows=np.concatenate([first.logit_rows, second.logit_rows]),
        num_decodes=first.num_decodes + second.num_decodes + num_decodes,
    )
