"""The C++ engine against plain numpy in float64, on every path that this CPU can take, with odd sizes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from native_paths import each_way, each_way_of_products, each_way_of_whole_numbers, library_of, paths
from native_rig import SHAPE, Reference, Rig, root_mean_square, tokens_of
from tidemill_kernels.native.cpu import KernelPath, supported_paths
from tidemill_kernels.native.engine import NativeEngine, Part, StepArrays


@pytest.fixture(params=paths)
def path(request: pytest.FixtureRequest) -> KernelPath:
    found: KernelPath = request.param
    return found


in_this_process = pytest.mark.parametrize("path", supported_paths(), ids=lambda path: path.name)


@each_way
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block_size": 1},
        {"block_size": 8},
        {"block_size": 16},
        {"block_size": 64},
        {"head_dim": 64, "num_heads": 9, "num_kv_heads": 3},
        {"head_dim": 2, "num_heads": 1, "num_kv_heads": 1, "hidden_size": 33},
        {"head_dim": 40, "num_heads": 16, "num_kv_heads": 1},
        {"head_dim": 80, "num_heads": 6, "num_kv_heads": 2},
        {"has_qkv_bias": True},
        {"has_qk_norm": True, "intermediate_size": 17},
        {"sliding_window": 37},
        {"sliding_window": 5, "block_size": 16},
    ],
    ids=str,
)
def test_prompts_in_chunks_and_decodes_are_the_reference(
    path: KernelPath, with_tiles: bool, changes: dict[str, Any]
) -> None:
    rig = Rig(replace(SHAPE, **changes), path, with_tiles=with_tiles)
    first, second = tokens_of(83), tokens_of(41, seed=1)
    rig.check(first[:50], rig.step((3, 0, first[:50])))
    both = rig.step((3, 50, first[50:82]), (7, 0, second[:40]))
    rig.check(first[:82], both[:32])
    rig.check(second[:40], both[32:])
    both = rig.step((7, 40, second[40:]), (3, 82, first[82:]))
    rig.check(second, both[:1])
    rig.check(first, both[1:])


@each_way_of_products
@pytest.mark.parametrize("count", [1, 3, 9, 14, 15, 17, 33, 64, 290])
def test_any_number_of_rows_is_the_reference(path: KernelPath, with_tiles: bool, count: int) -> None:
    rig = Rig(SHAPE, path, with_tiles=with_tiles)
    tokens = tokens_of(count)
    rig.check(tokens, rig.step((0, 0, tokens)))


@each_way_of_products
@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_tokens_without_logits_serve_those_that_have_some(
    path: KernelPath, with_tiles: bool, weights: str
) -> None:
    shape = replace(SHAPE, weights=weights, head=weights)
    rig, whole = (Rig(shape, path, with_tiles=with_tiles) for _ in range(2))
    first, second = tokens_of(83), tokens_of(41, seed=1)
    assert len(rig.step((3, 0, first[:50]), wanted=[])) == 0
    some = rig.step((3, 50, first[50:]), (7, 0, second), wanted=[0, 7, 32, 33, 73])
    whole.step((3, 0, first[:50]))
    every = whole.step((3, 50, first[50:]), (7, 0, second))[[0, 7, 32, 33, 73]]
    np.testing.assert_allclose(some, every, atol=0.02 * root_mean_square(every))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_long_context_of_one_sequence_is_split_and_put_together(path: KernelPath, threads: int) -> None:
    rig = Rig(SHAPE, path, threads=threads)
    tokens = tokens_of(650)
    rig.step((0, 0, tokens[:-1]))
    rig.check(tokens, rig.step((0, 649, tokens[-1:])))


@pytest.mark.parametrize("members", [2, 11])
def test_decodes_that_share_their_first_blocks_get_what_each_would_alone(
    path: KernelPath, members: int
) -> None:
    rig = Rig(SHAPE, path)
    prefix = tokens_of(96)
    rig.step((0, 0, prefix))
    texts = [prefix + tokens_of(3 + 5 * row, seed=row) for row in range(members)]
    for row, text in enumerate(texts):
        if row > 0:
            rig.share(row, 0, 3)
        rig.step((row, 96, text[96:-1]))
    loner = tokens_of(30, seed=99)
    rig.step((15, 0, loner[:-1]))
    found = rig.step(
        *((row, len(text) - 1, text[-1:]) for row, text in enumerate(texts)), (15, 29, loner[-1:])
    )
    for row, text in enumerate(texts):
        rig.check(text, found[row : row + 1])
    rig.check(loner, found[-1:])


def test_of_equal_logits_the_first_is_best_whoever_computes_it(path: KernelPath) -> None:
    shape = replace(SHAPE, vocab_size=3200)
    row = np.random.default_rng(3).normal(size=SHAPE.hidden_size).astype(np.float32)
    rig = Rig(shape, path, threads=3, stored={(Part.HEAD, -1): np.tile(row, (shape.vocab_size, 1))})
    for start in range(40):  # each step also checks the best against all logits
        rig.step((0, start, [5]))


@contextmanager
def little_memory() -> Iterator[None]:
    """Let this process have one GiB more of addresses than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@in_this_process
def test_threads_that_are_refused_are_an_error_of_the_engine(path: KernelPath) -> None:
    library = library_of(path)
    with little_memory(), pytest.raises(MemoryError, match="for 1000 threads"):
        NativeEngine(library, SHAPE, 1000)


@in_this_process
def test_after_a_step_too_large_for_memory_others_are_right(path: KernelPath) -> None:
    rig, count = Rig(SHAPE, path), 8 << 20
    nothing = np.zeros(count, dtype=np.int32)
    huge = StepArrays(
        token_ids=nothing,
        positions=nothing,
        starts=np.array([0, count], dtype=np.int32),
        lengths=np.array([count], dtype=np.int32),
        row_index=nothing[:1],
        block_table=rig.block_table,
        logit_tokens=nothing[:1],
    )
    with little_memory(), pytest.raises(MemoryError, match="buffers do not fit"):
        rig.engine.step(huge, nothing.view(np.uint64), nothing.view(np.uint64), wants_logits=False)
    tokens = tokens_of(9)
    rig.check(tokens, rig.step((3, 0, tokens)))


def test_a_row_that_is_not_a_number_spoils_no_other(path: KernelPath) -> None:
    rig = Rig(SHAPE, path)
    embedding = rig.weights.parts[Part.EMBEDDING, -1].copy()
    embedding[100] = np.nan
    rig.engine.set(Part.EMBEDDING, embedding)
    good = [5, 6, 7]
    arrays = StepArrays(
        token_ids=np.array([5, 100, 7, *good], dtype=np.int32),
        positions=np.array([0, 1, 2, 0, 1, 2], dtype=np.int32),
        starts=np.array([0, 3, 6], dtype=np.int32),
        lengths=np.array([3, 3], dtype=np.int32),
        row_index=np.array([0, 1], dtype=np.int32),
        block_table=np.array([[4], [5]], dtype=np.int32),
        logit_tokens=np.array([2, 5], dtype=np.int32),
    )
    addresses = [
        np.array([layer.ctypes.data for layer in cache], dtype=np.uint64) for cache in (rig.keys, rig.values)
    ]
    _, is_valid, logits = rig.engine.step(arrays, *addresses, wants_logits=True)
    assert is_valid.tolist() == [False, True]
    assert logits is not None
    rig.check(good, logits[1:])


@each_way_of_whole_numbers
@pytest.mark.parametrize(("weights", "tolerance"), [("int8", 0.05), ("int4", 0.4)])
@pytest.mark.parametrize("count", [1, 7, 33])
def test_quantised_weights_stay_near_the_reference(
    path: KernelPath, with_tiles: bool, weights: str, tolerance: float, count: int
) -> None:
    rig = Rig(replace(SHAPE, weights=weights, head="int8"), path, with_tiles=with_tiles)
    tokens = tokens_of(count)
    found, expected = rig.step((0, 0, tokens)), Reference(rig.shape, rig.weights).logits(tokens)
    assert root_mean_square(found - expected) <= tolerance * root_mean_square(expected)


@each_way_of_whole_numbers
@pytest.mark.parametrize("count", [1, 3, 20, 70])
@pytest.mark.parametrize("hidden_size", [64, 72, 200])
def test_int4_holds_exactly_what_groups_of_sixteen_values_hold(
    path: KernelPath, with_tiles: bool, count: int, hidden_size: int
) -> None:
    generator = np.random.default_rng(3)
    shape = replace(SHAPE, hidden_size=hidden_size, weights="int4", head="int4")
    numbers = generator.integers(0, 16, (shape.vocab_size, hidden_size))
    numbers[:, ::32], numbers[:, 1::32] = 0, 15
    scales = 2.0 ** generator.integers(-5, 0, (shape.vocab_size, -(-hidden_size // 32)))
    # All magnitudes of a row are alike and layers add nothing, so that activations are whole numbers, too.
    stored: dict[tuple[Part, int], Any] = {
        (Part.HEAD, -1): ((numbers - 3) * scales.repeat(32, axis=1)[:, :hidden_size]).astype(np.float32),
        (Part.EMBEDDING, -1): generator.integers(-1, 2, (shape.vocab_size, hidden_size)).astype(np.float32),
        (Part.FINAL_NORM, -1): np.ones(hidden_size, dtype=np.float32),
    }
    for layer in range(shape.num_layers):
        stored[Part.OUT, layer] = np.zeros((hidden_size, shape.num_heads * shape.head_dim), dtype=np.float32)
        stored[Part.DOWN, layer] = np.zeros((hidden_size, shape.intermediate_size), dtype=np.float32)
    tokens = tokens_of(count)
    found, expected = (
        Rig(each, path, with_tiles=with_tiles, stored=stored).step((0, 0, tokens))
        for each in (shape, replace(shape, weights="bf16", head="bf16"))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * root_mean_square(expected))


@each_way_of_whole_numbers
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_what_rows_give_does_not_depend_on_how_many_threads_prepare_them(
    path: KernelPath, with_tiles: bool, weights: str, count: int
) -> None:
    shape = replace(SHAPE, weights=weights, head="bf16" if weights == "bf16" else "int8")
    tokens = tokens_of(count)
    alone, *others = (
        Rig(shape, path, with_tiles=with_tiles, threads=threads).step((0, 0, tokens)) for threads in (1, 2, 5)
    )
    for other in others:
        np.testing.assert_array_equal(other, alone)


def test_weights_of_another_size_or_type_are_refused(path: KernelPath) -> None:
    engine = NativeEngine(library_of(path), SHAPE, 1)
    with pytest.raises(ValueError, match="QKV of layer 0"):
        engine.set(Part.QKV, np.zeros((4, 4), dtype=np.float32), 0)
    with pytest.raises(TypeError, match="float64"):
        engine.set(Part.FINAL_NORM, np.zeros(72), -1)


def test_times_of_sections_add_up_and_begin_anew(path: KernelPath) -> None:
    rig = Rig(SHAPE, path)
    rig.step((0, 0, tokens_of(9)))
    times = rig.engine.take_times()
    assert min(times.values()) > 0
    assert set(rig.engine.take_times().values()) == {0.0}
