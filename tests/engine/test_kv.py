from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_engine.kv import BlockPool, IntegrityError, KVCacheManager
from tidemill_engine.step import int_array


def make_manager(num_blocks: int = 10, block_size: int = 4, num_rows: int = 4) -> KVCacheManager:
    return KVCacheManager(
        num_blocks=num_blocks, block_size=block_size, num_rows=num_rows, max_tokens_per_row=1000
    )


def test_the_pool_gives_each_block_once_and_says_none_when_short() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(3), pool.allocate(2)
    assert first is not None
    assert second is not None
    assert sorted([*first, *second]) == [0, 1, 2, 3, 4]
    assert pool.allocate(1) is None
    assert pool.num_free == 0


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_free == 1
    pool.release(blocks)
    assert pool.num_free == 2
    pool.check_integrity(int_array())


def test_a_block_released_twice_at_once_is_freed_once() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.share(blocks)
    pool.release(np.concatenate([blocks, blocks]))
    assert pool.num_free == 3
    pool.check_integrity(int_array())


def test_the_tail_of_a_released_table_is_reused_first() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    assert blocks is not None
    pool.release(blocks)
    again = pool.allocate(1)
    assert again is not None
    assert again[0] == blocks[-1]


def test_releasing_or_sharing_a_free_block_is_an_error() -> None:
    pool = BlockPool(2)
    with pytest.raises(IntegrityError):
        pool.share(int_array([0]))
    with pytest.raises(IntegrityError):
        pool.release(int_array([0]))


def test_the_integrity_check_finds_a_holder_that_no_table_knows() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(IntegrityError):
        pool.check_integrity(int_array())


def test_append_fills_the_tables_of_several_rows_at_once() -> None:
    manager = make_manager()
    appends = manager.append(int_array([2, 0]), int_array([9, 4]))
    assert appends is not None
    assert appends.rows.tolist() == [2, 2, 2, 0]
    assert appends.positions.tolist() == [0, 1, 2, 0]
    assert manager.num_held.tolist() == [1, 0, 3, 0]
    more = manager.append(int_array([2, 0]), int_array([10, 5]))
    assert more is not None
    assert (more.rows.tolist(), more.positions.tolist()) == ([0], [1])
    manager.check_integrity()


def test_append_does_nothing_when_blocks_are_short() -> None:
    manager = make_manager(num_blocks=2)
    assert manager.append(int_array([0, 1]), int_array([4, 8])) is None
    assert manager.num_free_blocks == 2
    assert manager.num_held.tolist() == [0, 0, 0, 0]


def test_room_counts_what_the_row_holds_and_what_is_free() -> None:
    manager = make_manager(num_blocks=5)
    manager.append(int_array([0, 1]), int_array([4, 8]))
    assert manager.room_for(0) == 12


@given(
    st.lists(
        st.tuples(st.sampled_from(["grow", "release"]), st.integers(0, 3), st.integers(1, 30)), max_size=60
    )
)
def test_blocks_are_conserved_and_never_in_two_tables(steps: list[tuple[str, int, int]]) -> None:
    manager = make_manager()
    for action, row, num_tokens in steps:
        if action == "grow":
            manager.append(int_array([row]), int_array([num_tokens]))
        else:
            manager.release(row)
        manager.check_integrity()
        held = [int(block) for r in range(4) for block in manager.block_table[r, : manager.num_held[r]]]
        assert len(held) == len(set(held))
        assert len(held) + manager.num_free_blocks == 10
