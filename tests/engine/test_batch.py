from __future__ import annotations

import numpy as np

from tidemill_engine.batch import RowTables, build_batch
from tidemill_engine.messages import SamplingParams
from tidemill_engine.step import BlockAppends, NewRow, SchedulerOutput, int_array


def make_tables() -> RowTables:
    return RowTables(num_rows=4, max_tokens_per_row=16, block_size=4)


def new_row(row: int, token_ids: list[int]) -> NewRow:
    return NewRow(
        row=row,
        token_ids=int_array(token_ids),
        num_prompt_tokens=len(token_ids),
        sampling=SamplingParams(max_tokens=1),
        seed=0,
    )


def make_output(
    rows: list[int],
    counts: list[int],
    start_pos: list[int],
    logit_rows: list[int],
    new_rows: tuple[NewRow, ...] = (),
    appends: BlockAppends | None = None,
) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=0,
        rows=int_array(rows),
        num_scheduled_tokens=int_array(counts),
        num_draft_tokens=int_array([0] * len(rows)),
        start_pos=int_array(start_pos),
        adapter_slot=int_array([0] * len(rows)),
        logit_rows=int_array(logit_rows),
        new_rows=new_rows,
        block_appends=appends or BlockAppends(),
    )


def test_a_decode_and_a_chunk_lie_flat_behind_one_another() -> None:
    tables = make_tables()
    tables.apply(
        make_output(
            [2],
            [5],
            [0],
            [4],
            (new_row(2, [10, 11, 12, 13, 14]),),
            BlockAppends(rows=int_array([2, 2]), positions=int_array([0, 1]), block_ids=int_array([7, 3])),
        )
    )
    tables.append_tokens(int_array([2]), int_array([15]))
    output = make_output(
        [2, 0],
        [1, 3],
        [5, 1],
        [0],
        (new_row(0, [20, 21, 22, 23, 24]),),
        BlockAppends(rows=int_array([0]), positions=int_array([0]), block_ids=int_array([9])),
    )
    tables.apply(output)
    batch = build_batch(output, tables)
    assert batch.input_ids.tolist() == [15, 21, 22, 23]
    assert batch.positions.tolist() == [5, 1, 2, 3]
    assert batch.slot_mapping.tolist() == [3 * 4 + 1, 9 * 4 + 1, 9 * 4 + 2, 9 * 4 + 3]
    assert batch.query_start_loc.tolist() == [0, 1, 4]
    assert batch.seq_lens.tolist() == [6, 4]
    assert batch.num_decodes == 1
    assert batch.logit_rows.tolist() == [2]
    assert batch.block_table is tables.block_table


def test_decodes_alone_lie_as_they_do_in_front_of_a_chunk() -> None:
    tables = make_tables()
    appends = BlockAppends(
        rows=int_array([1, 3, 0]), positions=int_array([0, 0, 0]), block_ids=int_array([5, 2, 8])
    )
    new_rows = (new_row(1, [10, 11, 12]), new_row(3, [20, 21]), new_row(0, [30, 31, 32]))
    beside = make_output([3, 1, 0], [1, 1, 2], [1, 2, 0], [1, 0], new_rows, appends)
    tables.apply(beside)
    mixed = build_batch(beside, tables)
    alone = build_batch(make_output([3, 1], [1, 1], [1, 2], [1, 0]), tables)
    for name in ("input_ids", "positions", "slot_mapping", "row_index", "seq_lens"):
        found, expected = getattr(alone, name), getattr(mixed, name)
        np.testing.assert_array_equal(found, expected[:2])
        assert found.dtype == expected.dtype
    np.testing.assert_array_equal(alone.query_start_loc, mixed.query_start_loc[:3])
    assert alone.query_start_loc.dtype == mixed.query_start_loc.dtype
    np.testing.assert_array_equal(alone.logit_rows, mixed.logit_rows)
    assert alone.num_decodes == mixed.num_decodes == 2


def test_only_leading_single_tokens_count_as_decodes() -> None:
    tables = make_tables()
    tables.apply(make_output([0], [1], [0], [], (new_row(0, [1, 2]), new_row(1, [3, 4, 5]), new_row(2, [6]))))
    batch = build_batch(make_output([0, 1, 2], [1, 2, 1], [0, 0, 0], []), tables)
    assert batch.num_decodes == 1
    assert build_batch(make_output([0, 2], [1, 1], [0, 0], []), tables).num_decodes == 2


def test_a_row_taken_again_starts_over() -> None:
    tables = make_tables()
    tables.apply(make_output([1], [3], [0], [], (new_row(1, [1, 2, 3]),)))
    tables.append_tokens(int_array([1]), int_array([4]))
    tables.apply(make_output([1], [2], [0], [], (new_row(1, [8, 9]),)))
    tables.append_tokens(int_array([1]), int_array([10]))
    assert tables.token_ids[1, :3].tolist() == [8, 9, 10]


def test_a_token_beyond_the_longest_sequence_is_dropped() -> None:
    tables = make_tables()
    tables.apply(make_output([0], [1], [0], [], (new_row(0, list(range(16))), new_row(1, [5]))))
    tables.append_tokens(int_array([0, 1]), int_array([99, 6]))
    assert tables.num_tokens[:2].tolist() == [16, 2]
    assert tables.token_ids[0].tolist() == list(range(16))
    np.testing.assert_array_equal(tables.token_ids[1, :2], [5, 6])
