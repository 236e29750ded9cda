"""Tokens for nobody: computed like a padded batch's, seen by no request."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import Harness, make_harness, make_request, make_scheduler
from tidemill_engine.batch import Batch, RowTables, build_batch
from tidemill_engine.padding import PaddingRows, num_rows_with_padding
from tidemill_engine.runner.base import ModelRunner

NUM_ROWS = 4
SPARE = 64


def make_batches(prompt: list[int]) -> tuple[PaddingRows, RowTables, list[Batch]]:
    """Return spare rows, tables, and the batches of a prompt's chunk and of the decode after it."""
    tables = RowTables(num_rows=num_rows_with_padding(NUM_ROWS), max_tokens_per_row=15, block_size=4)
    padding = PaddingRows(tables, num_request_rows=NUM_ROWS, spare_block=SPARE)
    harness = make_harness(kind="static", is_prefix_caching=False, max_num_batched_tokens=64)
    harness.add(make_request("a", prompt=prompt, max_tokens=3))
    batches = []
    for step in range(2):
        harness.step()
        tables.apply(harness.steps[step])
        batches.append(build_batch(harness.steps[step], tables))
    return padding, tables, batches


def written_blocks(batch: Batch, rows: np.ndarray[tuple[int], np.dtype[np.int32]]) -> set[int]:
    """Return the blocks that these rows' tokens are written to."""
    token_rows = np.repeat(batch.row_index, np.diff(batch.query_start_loc))
    return set((batch.slot_mapping[np.isin(token_rows, rows)] // batch.block_size).tolist())


def test_padding_of_a_prompt_is_a_chunk_behind_it_that_writes_to_no_request_s_block() -> None:
    padding, _, (batch, _) = make_batches([5, 6, 7, 8, 9, 10])
    padded = padding.joined(batch, 4, 4 * (7 + 2))
    assert padded.input_ids.tolist() == [5, 6, 7, 8, 9, 10, 0, 0, 0, 0]
    assert padded.positions[6:].tolist() == [7, 8, 9, 10]
    assert written_blocks(padded, padded.row_index[1:]) == {SPARE}
    assert padded.query_start_loc.tolist() == [0, 6, 10]
    assert padded.seq_lens.tolist() == [6, 11]
    assert (padded.logit_tokens.tolist(), padded.num_decodes) == ([5], 0)
    assert padding.joined(batch, 0, 0) is batch


def test_padding_of_a_decode_is_sequences_of_one_token_over_the_padded_context() -> None:
    padding, _, (_, batch) = make_batches([5, 6, 7, 8, 9, 10])
    padded = padding.joined(batch, 3, 27)
    assert padded.seq_lens.tolist() == [9, 9, 9, 7]
    assert padded.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert written_blocks(padded, padded.row_index[:3]) == {SPARE}
    assert padded.slot_mapping[3:].tolist() == batch.slot_mapping.tolist()
    assert (padded.logit_tokens.tolist(), padded.num_decodes) == ([3], 4)
    assert padded.logit_rows.tolist() == batch.logit_rows.tolist()


def test_padding_of_decodes_reads_blocks_that_were_written_and_each_sequence_others() -> None:
    padding, tables, (_, batch) = make_batches([5, 6, 7, 8, 9, 10])
    tables.block_table[1, :4] = [2, 3, 4, 7]
    padded = padding.joined(batch, 3, 27)
    blocks = tables.block_table[padded.row_index[:3], :3]
    assert blocks.tolist() == [[7, 6, SPARE], [4, 3, SPARE], [1, 0, SPARE]]


three_tokens = cache(lambda: make_batches([5, 6, 7]))


@given(num_tokens=st.integers(1, 60), num_pairs=st.integers(0, 5000))
def test_padding_of_any_size_stays_inside_the_spare_rows(num_tokens: int, num_pairs: int) -> None:
    padding, tables, batches = three_tokens()
    before = tables.block_table[:NUM_ROWS].copy()
    for batch in batches:
        padded = padding.joined(batch, num_tokens, num_pairs)
        spare = padded.row_index[padded.row_index >= NUM_ROWS]
        assert len(padded.input_ids) == len(batch.input_ids) + num_tokens
        assert len(spare) == len(padded.row_index) - len(batch.row_index)
        assert padded.seq_lens.max() <= 15
        assert np.diff(padded.query_start_loc).sum() == len(padded.input_ids)
        assert written_blocks(padded, spare) == {SPARE}
    assert tables.block_table[:NUM_ROWS].tolist() == before.tolist()


@pytest.mark.real_model
def test_padding_changes_no_token_of_the_real_model(smollm2_runner: ModelRunner) -> None:
    tokens = []
    for kind in ("continuous", "static"):
        harness = Harness(
            scheduler=make_scheduler(
                smollm2_runner.info, kind=kind, is_prefix_caching=False, max_num_batched_tokens=64
            ),
            runner=smollm2_runner,
        )
        for index, length in enumerate([3, 20, 9]):
            prompt = list(range(100 + index, 100 + index + length))
            harness.add(make_request(f"r{index}", prompt=prompt, max_tokens=4 + index, temperature=0.0))
        harness.run()
        tokens.append([harness.tokens(f"r{index}") for index in range(3)])
        if kind == "static":
            assert sum(step.num_padding_tokens for step in harness.steps) > 20
    assert tokens[0] == tokens[1]
