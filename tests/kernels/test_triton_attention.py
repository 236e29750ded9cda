"""Paged attention in Triton's interpreter, against its reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from kernel_device import FLOATS, seeded, tolerances
from tidemill_kernels.paged_attention import paged_attention_reference
from tidemill_kernels.paged_attention.batch import AttentionOptions, PagedBatch
from tidemill_kernels.paged_attention.launch import (
    MAX_PARTS,
    AttentionLaunch,
    Gpu,
    HeadShape,
    plan_attention,
    plan_parts,
)
from tidemill_kernels.paged_attention.triton_kernel import paged_attention
from tidemill_kernels.rope_kv_write import NARROW_MOST

TOLERANCE = tolerances(1e-5, 4e-3)
EXACT = TOLERANCE[torch.float32]
Sequences = list[tuple[int, int]]


class Case:
    """Random queries and caches for sequences of (context, new tokens) each."""

    def __init__(
        self,
        sequences: Sequences,
        *,
        heads: HeadShape,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = seeded(len(sequences))
        self.heads = heads
        self.query_lens = [new for _, new in sequences]
        self.seq_lens = [context + new for context, new in sequences]
        self.starts = [0]
        for new in self.query_lens:
            self.starts.append(self.starts[-1] + new)
        max_blocks = max(1, -(-max(self.seq_lens) // block_size))
        num_blocks = max_blocks * len(sequences)
        table = torch.randperm(num_blocks, generator=generator).view(len(sequences), max_blocks)
        self.table = table.int()
        shape = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        self.query = torch.randn(self.starts[-1], heads.num_heads, heads.head_dim, generator=generator).to(
            dtype
        )
        self.caches = tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(2))

    def plan(self, num_multiprocessors: int = 1) -> AttentionLaunch:
        gpu = Gpu(num_multiprocessors=num_multiprocessors)
        return plan_attention(self.query_lens, self.seq_lens, self.heads, gpu)

    def run(
        self,
        launch: AttentionLaunch,
        *,
        options: AttentionOptions | None = None,
        padding: int = 0,
        caches: tuple[torch.Tensor, torch.Tensor] | None = None,
        scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        tiles = [*launch.tile_sequences, *[-1] * padding], [*launch.tile_starts, *[0] * padding]
        batch = PagedBatch(
            block_table=self.table,
            seq_lens=torch.tensor(self.seq_lens, dtype=torch.int32),
            query_start_loc=torch.tensor(self.starts, dtype=torch.int32),
            tile_sequences=torch.tensor(tiles[0], dtype=torch.int32),
            tile_starts=torch.tensor(tiles[1], dtype=torch.int32),
        )
        plain = AttentionOptions(scale=1 / math.sqrt(self.heads.head_dim))
        pair = caches or (self.caches[0], self.caches[1])
        return paged_attention(self.query, pair, batch, launch, options or plain, scales=scales)

    def reference(self) -> torch.Tensor:
        return paged_attention_reference(
            self.query, self.caches[0], self.caches[1], self.table.long(), self.seq_lens, self.starts
        )

    def dense(self, options: AttentionOptions) -> torch.Tensor:
        """Compute attention with every option from gathered keys and values, in float64."""
        out = torch.empty_like(self.query)
        for index, length in enumerate(self.seq_lens):
            slots = [int(self.table[index, p // 16]) * 16 + p % 16 for p in range(length)]
            keys, values = (cache.flatten(0, 1)[slots].double() for cache in self.caches)
            for offset in range(self.query_lens[index]):
                position = length - self.query_lens[index] + offset
                first = max(0, position + 1 - options.window) if options.window else 0
                token = self.starts[index] + offset
                for head in range(self.heads.num_heads):
                    kv_head = head // self.heads.group
                    scores = keys[first : position + 1, kv_head] @ self.query[token, head].double()
                    scores *= options.scale
                    if options.soft_cap:
                        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
                    weights = torch.softmax(scores, dim=0)
                    out[token, head] = (weights @ values[first : position + 1, kv_head]).to(out.dtype)
        return out


SMALL = HeadShape(num_heads=6, num_kv_heads=2, head_dim=24)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "heads",
    [
        SMALL,
        HeadShape(num_heads=9, num_kv_heads=3, head_dim=64),
        HeadShape(num_heads=2, num_kv_heads=2, head_dim=16),
    ],
)
def test_decodes_prefills_and_continues_in_one_launch(heads: HeadShape, dtype: torch.dtype) -> None:
    case = Case([(70, 1), (0, 1), (33, 20), (0, 7)], heads=heads, dtype=dtype)
    found, tolerance = case.run(case.plan()), TOLERANCE[dtype]
    torch.testing.assert_close(found, case.reference(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("block_size", [1, 7, 16, 32])
def test_takes_any_block_size(block_size: int) -> None:
    case = Case([(40, 1), (3, 5)], heads=SMALL, block_size=block_size)
    torch.testing.assert_close(case.run(case.plan()), case.reference(), rtol=EXACT, atol=EXACT)


def test_merges_the_parts_of_long_contexts() -> None:
    case = Case([(900, 1), (530, 1), (2, 1)], heads=SMALL)
    launch = case.plan(num_multiprocessors=100)
    assert launch.num_parts == 2
    torch.testing.assert_close(case.run(launch), case.reference(), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("num_multiprocessors", [1, 100])
@pytest.mark.parametrize(("window", "soft_cap"), [(30, 0.0), (0, 2.0), (5, 1.5), (1000, 0.0)])
def test_sees_only_the_window_and_caps_scores(window: int, soft_cap: float, num_multiprocessors: int) -> None:
    case = Case([(520, 1), (10, 12), (0, 3)], heads=HeadShape(num_heads=4, num_kv_heads=2, head_dim=16))
    options = AttentionOptions(scale=0.5, window=window, soft_cap=soft_cap)
    found = case.run(case.plan(num_multiprocessors), options=options)
    torch.testing.assert_close(found, case.dense(options), rtol=2 * EXACT, atol=2 * EXACT)


@pytest.mark.parametrize("num_multiprocessors", [1, 100])
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_folds_the_scales_of_a_narrow_cache(kind: torch.dtype, num_multiprocessors: int) -> None:
    case = Case([(520, 1), (0, 9)], heads=SMALL)
    scales = [cache.abs().amax(-1) / NARROW_MOST[kind] for cache in case.caches]
    scaled = [cache / scale[..., None] for cache, scale in zip(case.caches, scales, strict=True)]
    narrow = [(numbers.round() if kind == torch.int8 else numbers).to(kind) for numbers in scaled]
    case.caches = tuple(cache.float() * scale[..., None] for cache, scale in zip(narrow, scales, strict=True))
    launch = case.plan(num_multiprocessors)
    found = case.run(launch, caches=(narrow[0], narrow[1]), scales=(scales[0], scales[1]))
    torch.testing.assert_close(found, case.reference(), rtol=EXACT, atol=EXACT)


def test_padding_tiles_change_nothing() -> None:
    case = Case([(20, 1), (5, 1)], heads=SMALL)
    assert torch.equal(case.run(case.plan(), padding=3), case.run(case.plan()))


def test_a_token_gets_the_same_numbers_alone_and_in_a_batch() -> None:
    alone = Case([(70, 1)], heads=SMALL)
    launch = alone.plan()
    crowd = Case([(70, 1)], heads=SMALL)
    crowd.query = torch.cat([alone.query, alone.query.flip(0)])
    crowd.table = alone.table.repeat(2, 1)
    crowd.seq_lens, crowd.query_lens, crowd.starts = [71, 30], [1, 1], [0, 1, 2]
    assert torch.equal(crowd.run(crowd.plan())[0], alone.run(launch)[0])


@pytest.mark.slow
def test_slots_beyond_32_bits_are_reached() -> None:
    """An offset into a cache of more than 2 ** 31 elements must not wrap."""
    case = Case([(3, 1)], heads=HeadShape(num_heads=1, num_kv_heads=1, head_dim=16))
    near = (case.caches[0] * 50).to(torch.int8)
    hundredth = torch.full(near.shape[:3], 0.01)
    wanted = case.run(case.plan(), caches=(near, near), scales=(hundredth, hundredth))
    last = 2**31 // 256 + 5
    far = torch.zeros((last + 1, 16, 1, 16), dtype=torch.int8)
    far[last] = near[case.table[0, 0]]
    scales = torch.zeros(far.shape[:3])
    scales[last] = 0.01
    case.table = torch.tensor([[last]], dtype=torch.int32)
    assert torch.equal(case.run(case.plan(), caches=(far, far), scales=(scales, scales)), wanted)


def test_an_empty_batch_gives_an_empty_answer() -> None:
    case = Case([(4, 0)], heads=SMALL)
    assert case.run(case.plan()).shape == (0, 6, 24)


def test_refuses_more_new_tokens_than_tokens() -> None:
    with pytest.raises(ValueError, match="more new tokens"):
        plan_attention([2], [1], SMALL, Gpu(num_multiprocessors=1))


@examples(100)
@given(
    lens=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=12),
    group=st.integers(1, 16),
    num_multiprocessors=st.integers(1, 200),
)
def test_tiles_cover_every_new_token_once(lens: Sequences, group: int, num_multiprocessors: int) -> None:
    query_lens, seq_lens = [new for _, new in lens], [context + new for context, new in lens]
    heads = HeadShape(num_heads=4 * group, num_kv_heads=4, head_dim=64)
    launch = plan_attention(query_lens, seq_lens, heads, Gpu(num_multiprocessors=num_multiprocessors))
    covered = [
        (sequence, start + offset)
        for sequence, start in zip(launch.tile_sequences, launch.tile_starts, strict=True)
        for offset in range(min(launch.tokens_per_tile, query_lens[sequence] - start))
    ]
    assert sorted(covered) == [(s, t) for s, new in enumerate(query_lens) for t in range(new)]
    assert launch.rows >= 16
    assert launch.rows & (launch.rows - 1) == 0
    assert 1 <= launch.num_parts <= MAX_PARTS


def test_wide_tiles_take_fewer_keys_at_once_before_sm_90() -> None:
    heads, lens = HeadShape(num_heads=32, num_kv_heads=8, head_dim=128), [2048]
    keys = {
        capability: plan_attention(lens, lens, heads, Gpu(num_multiprocessors=1, capability=capability)).keys
        for capability in (80, 90)
    }
    assert keys == {80: 32, 90: 64}
    assert plan_attention([1], lens, heads, Gpu(num_multiprocessors=1, capability=80)).keys == 64


def test_float32_takes_tiles_that_fit_smaller_gpus() -> None:
    heads = HeadShape(num_heads=32, num_kv_heads=8, head_dim=128)
    gpu = Gpu(num_multiprocessors=1)
    launch = plan_attention([2048], [2048], heads, gpu, is_float32=True)
    assert (launch.rows, launch.keys, launch.num_stages) == (32, 32, 2)
    assert plan_attention([1], [2048], heads, gpu, is_float32=True).rows == 16


def test_few_programs_over_long_contexts_are_split_and_many_are_not() -> None:
    assert plan_parts(num_programs=8, longest_context=32_768, num_multiprocessors=132) == 32
    assert plan_parts(num_programs=2048, longest_context=32_768, num_multiprocessors=132) == 1
    assert plan_parts(num_programs=8, longest_context=300, num_multiprocessors=132) == 1
