"""Weights kept in a GGUF file's own blocks: bit for bit what the same numbers as bfloat16 give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from native_paths import each_way, each_way_of_products, each_way_of_whole_numbers, library_of
from native_rig import SHAPE, Rig, root_mean_square, rounded, tokens_of
from tidemill_kernels.native.cpu import KernelPath, supported_paths
from tidemill_kernels.native.engine import Array, EngineShape, NativeEngine, Part, StoredTensor

BLOCK = 32
BLOCKY = replace(SHAPE, hidden_size=96, intermediate_size=160, num_heads=4, num_kv_heads=2, head_dim=24)
"""Inputs are whole blocks, but no whole 64; outputs fill no last panel."""
Stored = dict[tuple[Part, int], Array | Sequence[StoredTensor]]
Values = dict[tuple[Part, int], npt.NDArray[np.float32]]


def random_blocks(
    kind: str, rows: int, columns: int, seed: int
) -> tuple[StoredTensor, npt.NDArray[np.float32]]:
    """Return random blocks and the numbers that they stand for: `[rows, columns]`."""
    generator = np.random.default_rng(seed)
    blocks = columns // BLOCK
    size = 0.3 / columns**0.5
    scale = generator.uniform(0.1 * size, size, (rows, blocks, 1)).astype(np.float16)
    if kind == "q8_0":
        numbers = generator.integers(-127, 128, (rows, blocks, BLOCK)).astype(np.int8)
        scale = (scale / np.float16(8)).astype(np.float16)
        values = numbers.astype(np.float32) * scale.astype(np.float32)
        parts = [scale.view(np.uint8), numbers.view(np.uint8)]
    else:
        numbers = generator.integers(0, 16, (rows, blocks, BLOCK)).astype(np.uint8)
        least = (generator.uniform(-9, -6, scale.shape) * scale).astype(np.float16)
        values = numbers.astype(np.float32) * scale.astype(np.float32) + least.astype(np.float32)
        nibbles = (numbers[..., : BLOCK // 2] | numbers[..., BLOCK // 2 :] << 4).astype(np.uint8)
        parts = [scale.view(np.uint8), least.view(np.uint8), nibbles]
    data = np.ascontiguousarray(np.concatenate(parts, axis=-1).reshape(rows, -1))
    return StoredTensor(data=data, kind=kind, rows=rows, columns=columns), values.reshape(rows, columns)


def stored_parts(shape: EngineShape, kind: str) -> tuple[Stored, Values]:
    """Return all matrices in blocks, and as the bfloat16 numbers next to what they stand for."""
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {
        Part.QKV: (query_size + 2 * kv_size, shape.hidden_size),
        Part.OUT: (shape.hidden_size, query_size),
        Part.GATE_UP: (2 * shape.intermediate_size, shape.hidden_size),
        Part.DOWN: (shape.hidden_size, shape.intermediate_size),
    }
    wanted = {(part, layer): size for layer in range(shape.num_layers) for part, size in sizes.items()}
    wanted[Part.HEAD, -1] = (shape.vocab_size, shape.hidden_size)
    stored: Stored = {}
    values: Values = {}
    for seed, ((part, layer), (rows, columns)) in enumerate(wanted.items()):
        tensor, numbers = random_blocks(kind, rows, columns, seed)
        stored[part, layer], values[part, layer] = [tensor], rounded(numbers)
    return stored, values


@each_way_of_products
@pytest.mark.parametrize("kind", ["q4_1", "q8_0"])
@pytest.mark.parametrize("count", [1, 7, 33, 70])
def test_blocks_give_bit_for_bit_what_bfloat16_gives(
    path: KernelPath, with_tiles: bool, kind: str, count: int
) -> None:
    stored, values = stored_parts(BLOCKY, kind)
    shape = replace(BLOCKY, weights=kind, head=kind)
    in_blocks = Rig(shape, path, with_tiles=with_tiles, stored=stored)
    plain = Rig(BLOCKY, path, with_tiles=with_tiles, stored=dict(values))
    tokens = tokens_of(count)
    found = in_blocks.step((0, 0, tokens))
    np.testing.assert_array_equal(found, plain.step((0, 0, tokens)))
    assert np.abs(found).max() > 0.1


@each_way
def test_rows_of_heads_that_come_in_turns_are_put_in_order(path: KernelPath, with_tiles: bool) -> None:
    query_rows, kv_rows = BLOCKY.num_heads * BLOCKY.head_dim, BLOCKY.num_kv_heads * BLOCKY.head_dim
    query, of_query = random_blocks("q4_1", query_rows, BLOCKY.hidden_size, 1)
    key, of_key = random_blocks("q4_1", kv_rows, BLOCKY.hidden_size, 2)
    value, of_value = random_blocks("q4_1", kv_rows, BLOCKY.hidden_size, 3)

    def in_order(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
        halves = rows.reshape(heads, len(rows) // heads // 2, 2, -1)
        return halves.swapaxes(1, 2).reshape(rows.shape)

    tensors = [
        replace(query, interleaved_heads=BLOCKY.num_heads),
        replace(key, interleaved_heads=BLOCKY.num_kv_heads),
        value,
    ]
    ordered = [in_order(of_query, BLOCKY.num_heads), in_order(of_key, BLOCKY.num_kv_heads), of_value]
    of_file = Rig(BLOCKY, path, with_tiles=with_tiles, stored={(Part.QKV, 0): tensors})
    plain = Rig(BLOCKY, path, with_tiles=with_tiles, stored={(Part.QKV, 0): rounded(np.concatenate(ordered))})
    tokens = tokens_of(9)
    np.testing.assert_array_equal(of_file.step((0, 0, tokens)), plain.step((0, 0, tokens)))


@each_way_of_whole_numbers
def test_int4_takes_the_file_s_nibbles_as_they_are(path: KernelPath, with_tiles: bool) -> None:
    stored, _ = stored_parts(BLOCKY, "q4_1")
    nibbles = {part: tensors for part, tensors in stored.items() if part[0] is not Part.HEAD}
    int4 = Rig(replace(BLOCKY, weights="int4"), path, with_tiles=with_tiles, stored=dict(nibbles))
    exact = Rig(replace(BLOCKY, weights="q4_1"), path, with_tiles=with_tiles, stored=dict(nibbles))
    np.testing.assert_array_equal(int4.engine.memory, exact.engine.memory)
    tokens = tokens_of(20)
    found, expected = int4.step((0, 0, tokens)), exact.step((0, 0, tokens))
    if with_tiles:  # such weights are widened, and nothing else is rounded
        np.testing.assert_array_equal(found, expected)
    assert root_mean_square(found - expected) <= 0.03 * root_mean_square(expected)


def test_blocks_that_a_format_can_t_hold_are_refused() -> None:
    shape = replace(BLOCKY, weights="q4_1")
    library = library_of(supported_paths()[0])
    engine = NativeEngine(library, shape, 1)
    tensor, values = random_blocks("q8_0", shape.hidden_size, shape.intermediate_size, 0)
    with pytest.raises(ValueError, match="DOWN of layer 0"):
        engine.set(Part.DOWN, [tensor], 0)
    with pytest.raises(ValueError, match="DOWN of layer 0"):
        engine.set(Part.DOWN, values, 0)
