from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from examples import examples
from tidemill_kernels.paged_attention import (
    make_plan,
    paged_attention,
    paged_attention_reference,
    store_kv,
)
from tidemill_kernels.paged_attention.plan import Stretch

HEAD_DIM = 8
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}

Order = Literal["neighbours", "scattered", "half", "pairs"]
ORDERS: tuple[Order, ...] = ("neighbours", "scattered", "half", "pairs")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Random queries and caches for sequences that each have some context and some new tokens."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_table: torch.Tensor
    seq_lens: list[int]
    query_start_loc: list[int]


def make_case(
    sequences: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    order: Order = "scattered",
) -> Case:
    """Build a case from (context, new tokens); block 0 is nobody's."""
    generator = torch.Generator().manual_seed(0)
    seq_lens = [context + new for context, new in sequences]
    max_blocks = -(-max(seq_lens) // block_size)
    num_blocks = max_blocks * len(sequences) + 1
    starts = [0]
    for _, new in sequences:
        starts.append(starts[-1] + new)
    cache = (num_blocks, block_size, num_kv_heads, HEAD_DIM)
    return Case(
        query=torch.randn(starts[-1], num_heads, HEAD_DIM, generator=generator).to(dtype),
        keys=torch.randn(cache, generator=generator).to(dtype),
        values=torch.randn(cache, generator=generator).to(dtype),
        block_table=1 + ordered(len(sequences) * max_blocks, order).view(len(sequences), max_blocks),
        seq_lens=seq_lens,
        query_start_loc=starts,
    )


def ordered(num_blocks: int, order: Order) -> torch.Tensor:
    """Number the blocks: as they lie, at random, every other stretch of 40 at random, or by random pairs."""
    blocks = torch.arange(num_blocks)
    generator = torch.Generator().manual_seed(1)
    if order == "scattered":
        return torch.randperm(num_blocks, generator=generator)
    if order == "half":
        is_moved = blocks // 40 % 2 == 1
        moved = blocks[is_moved]
        blocks[is_moved] = moved[torch.randperm(len(moved), generator=generator)]
    if order == "pairs":
        pairs = torch.randperm(-(-num_blocks // 2), generator=generator)
        blocks = torch.argsort(torch.stack([2 * pairs, 2 * pairs + 1], dim=1).flatten()[:num_blocks])
    return blocks


def attend(case: Case) -> torch.Tensor:
    plan = make_plan(case.block_table.numpy(), case.seq_lens, case.query_start_loc, case.keys.shape[1])
    return paged_attention(case.query, case.keys, case.values, plan)


def expected(case: Case) -> torch.Tensor:
    return paged_attention_reference(
        case.query, case.keys, case.values, case.block_table, case.seq_lens, case.query_start_loc
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sequences",
    [
        [(0, 1)],
        [(7, 1)],
        [(0, 5)],
        [(6, 5)],
        [(3, 1), (100, 1), (8, 1), (0, 1)],
        [(3, 1), (210, 1), (0, 7), (9, 2), (163, 4), (2, 1)],
        [(136, 70)],
    ],
    ids=str,
)
def test_it_is_its_reference(sequences: list[tuple[int, int]], dtype: torch.dtype, order: Order) -> None:
    case = make_case(sequences, dtype=dtype, order=order)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(attend(case).float(), expected(case).float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (9, 3), (4, 1), (4, 4)])
def test_query_heads_share_key_heads_as_in_the_reference(
    num_heads: int, num_kv_heads: int, order: Order
) -> None:
    case = make_case([(90, 1), (70, 6)], num_heads=num_heads, num_kv_heads=num_kv_heads, order=order)
    torch.testing.assert_close(attend(case), expected(case), rtol=1e-5, atol=1e-5)


@examples(25)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=6),
    st.sampled_from([1, 2, 8, 32]),
    st.sampled_from(ORDERS),
)
def test_any_mix_of_decodes_and_chunks_is_the_reference(
    sequences: list[tuple[int, int]], block_size: int, order: Order
) -> None:
    case = make_case(sequences, block_size=block_size, order=order)
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


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor of numbers that an operator makes anew."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if tensor.is_floating_point() and tensor.untyped_storage().data_ptr() not in self._known:
                self.largest = max(self.largest, tensor.numel())
        return made


@pytest.mark.parametrize("sequences", [[(900, 1)] * 3, [(900, 12), (700, 1)]], ids=str)
def test_keys_and_values_in_neighbouring_blocks_are_read_where_they_lie(
    sequences: list[tuple[int, int]],
) -> None:
    case = make_case(sequences, order="neighbours")
    with Allocations(case.query, case.keys, case.values) as made:
        attend(case)
    assert made.largest <= case.query.numel()
    scattered = make_case(sequences, order="scattered")
    with Allocations(scattered.query, scattered.keys, scattered.values) as made:
        attend(scattered)
    assert made.largest >= 700 * 2 * HEAD_DIM


def stretches_of(blocks: list[int], length: int, num_queries: int, block_size: int = 32) -> list[Stretch]:
    table: npt.NDArray[np.int32] = np.asarray([blocks], dtype=np.int32)
    plan = make_plan(table, [length], [0, num_queries], block_size)
    return list(plan.spans[0].stretches)


def lengths_of(stretches: list[Stretch]) -> list[tuple[bool, int]]:
    """Say of each stretch whether it is a view, and how long it is."""
    return [
        (True, found.slots.stop - found.slots.start)
        if isinstance(found.slots, slice)
        else (False, len(found.slots))
        for found in stretches
    ]


def test_only_what_lies_scattered_is_copied() -> None:
    assert lengths_of(stretches_of([4, 5, 6, 7], 120, 1)) == [(True, 120)]
    assert lengths_of(stretches_of([4, 5, 6, 1, 9, 3], 170, 1)) == [(False, 170)]
    assert lengths_of(stretches_of([4, 5, 9, 1, 2, 3], 180, 1)) == [(False, 180)]
    assert lengths_of(stretches_of([8, 6, 4], 70, 1)) == [(False, 70)]


def test_a_chunk_sees_its_context_whole_and_itself_in_the_order_of_its_tokens() -> None:
    context, own = stretches_of([4, 5, 6, 1, 2, 9], 180, 100)
    assert (context.slots, context.is_causal) == (slice(128, 208), False)
    assert isinstance(own.slots, torch.Tensor)
    assert own.slots.tolist() == [*range(208, 224), *range(32, 96), *range(288, 308)]
    assert own.is_causal


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
