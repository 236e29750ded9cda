from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from tidemill_kernels.paged_attention import (
    make_plan,
    paged_attention,
    paged_attention_reference,
    store_kv,
)
from tidemill_kernels.paged_attention.plan import CacheLayout

HEAD_DIM = 8
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Random queries and caches for sequences that each have some context and some new tokens."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_table: torch.Tensor
    seq_lens: list[int]
    query_start_loc: list[int]
    num_decodes: int


def make_case(
    sequences: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Build a case from (context, new tokens); sequences with one new token come first."""
    sequences = sorted(sequences, key=lambda sequence: sequence[1] != 1)
    generator = torch.Generator().manual_seed(0)
    seq_lens = [context + new for context, new in sequences]
    max_blocks = -(-max(seq_lens) // block_size)
    num_blocks = max_blocks * len(sequences) + 1
    starts = [0]
    for _, new in sequences:
        starts.append(starts[-1] + new)
    cache = (num_blocks, block_size, num_kv_heads, HEAD_DIM)
    order = torch.randperm(num_blocks - 1, generator=generator) + 1
    return Case(
        query=torch.randn(starts[-1], num_heads, HEAD_DIM, generator=generator).to(dtype),
        keys=torch.randn(cache, generator=generator).to(dtype),
        values=torch.randn(cache, generator=generator).to(dtype),
        block_table=order.view(len(sequences), max_blocks),
        seq_lens=seq_lens,
        query_start_loc=starts,
        num_decodes=sum(new == 1 for _, new in sequences),
    )


def attend(case: Case) -> torch.Tensor:
    layout = CacheLayout(
        block_size=case.keys.shape[1], num_kv_heads=case.keys.shape[2], dtype=case.query.dtype
    )
    plan = make_plan(case.block_table, case.seq_lens, case.query_start_loc, case.num_decodes, layout)
    return paged_attention(case.query, case.keys, case.values, plan)


def expected(case: Case) -> torch.Tensor:
    return paged_attention_reference(
        case.query, case.keys, case.values, case.block_table, case.seq_lens, case.query_start_loc
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sequences",
    [
        [(0, 1)],
        [(7, 1)],
        [(0, 5)],
        [(6, 5)],
        [(3, 1), (100, 1), (8, 1), (0, 1)],
        [(3, 1), (50, 1), (0, 7), (9, 2), (4, 4)],
    ],
    ids=str,
)
def test_it_is_its_reference(sequences: list[tuple[int, int]], dtype: torch.dtype) -> None:
    case = make_case(sequences, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(attend(case).float(), expected(case).float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (9, 3), (4, 1), (4, 4)])
def test_query_heads_share_key_heads_as_in_the_reference(num_heads: int, num_kv_heads: int) -> None:
    case = make_case([(5, 1), (2, 6)], num_heads=num_heads, num_kv_heads=num_kv_heads)
    torch.testing.assert_close(attend(case), expected(case), rtol=1e-5, atol=1e-5)


@examples(25)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=6),
    st.sampled_from([1, 2, 8]),
)
def test_any_mix_of_decodes_and_chunks_is_the_reference(
    sequences: list[tuple[int, int]], block_size: int
) -> None:
    case = make_case(sequences, block_size=block_size)
    torch.testing.assert_close(attend(case), expected(case), rtol=1e-5, atol=1e-5)


def test_blocks_of_others_and_unused_slots_do_not_matter() -> None:
    case = make_case([(5, 1), (2, 6)])
    before = attend(case)
    used = torch.zeros(case.keys.shape[:2], dtype=torch.bool)
    for sequence, length in enumerate(case.seq_lens):
        for position in range(length):
            used[case.block_table[sequence, position // 4], position % 4] = True
    case.keys[~used] = 1e4
    case.values[~used] = 1e4
    torch.testing.assert_close(attend(case), before, rtol=0, atol=0)


def test_short_and_long_sequences_are_not_padded_to_one_length() -> None:
    layout = CacheLayout(block_size=4, num_kv_heads=2, dtype=torch.float32)
    table = torch.arange(300).view(3, 100)
    plan = make_plan(table, [400, 10, 9], [0, 1, 2, 3], 3, layout)
    assert [group.length for group in plan.decode_groups] == [400, 10]
    assert [group.tokens.tolist() for group in plan.decode_groups] == [[0], [1, 2]]


def test_store_kv_writes_the_slots_and_nothing_else() -> None:
    cache = torch.zeros(3, 4, 2, HEAD_DIM)
    values = torch.randn(2, 2, HEAD_DIM)
    store_kv(cache, values, torch.tensor([5, 11]))
    torch.testing.assert_close(cache[1, 1], values[0])
    torch.testing.assert_close(cache[2, 3], values[1])
    assert int((cache != 0).sum()) == values.numel()


def test_it_refuses_heads_that_do_not_divide() -> None:
    case = make_case([(5, 1)], num_heads=3, num_kv_heads=2)
    with pytest.raises(ValueError, match="query heads"):
        attend(case)
