"""The C++ engine with random weights, and beside it the same model in plain numpy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from native_paths import library_of
from tidemill_kernels.native.cpu import KernelPath
from tidemill_kernels.native.engine import (
    MATRIX_KINDS,
    NUM_BUCKETS,
    Array,
    EngineShape,
    NativeEngine,
    Part,
    StepArrays,
    StoredTensor,
)

Floats = npt.NDArray[np.float64]
SHAPE = EngineShape(
    num_layers=2,
    hidden_size=72,
    intermediate_size=56,
    num_heads=6,
    num_kv_heads=2,
    head_dim=24,
    vocab_size=101,
    max_positions=700,
    block_size=32,
    rms_norm_eps=1e-5,
)
TOLERANCE = 0.03
"""Of the logits' root mean square, for the error's; ten times that for the largest error.

It is what rounding to bfloat16 between operators comes to, which every path does.
"""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Random weights, as float32 that bfloat16 holds exactly."""

    parts: dict[tuple[Part, int], Array]

    def of(self, part: Part, layer: int = -1) -> Floats:
        return self.parts[part, layer].astype(np.float64)


def rounded(values: Array) -> npt.NDArray[np.float32]:
    """Round to bfloat16 and back."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    even = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return even.view(np.float32)


def root_mean_square(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


def make_weights(shape: EngineShape, seed: int = 0) -> Weights:
    generator = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Array:
        return rounded(generator.normal(size=(rows, columns)) / columns**0.5)

    def norm(size: int) -> Array:
        return rounded(generator.uniform(0.5, 1.5, size))

    parts: dict[tuple[Part, int], Array] = {
        (Part.EMBEDDING, -1): rounded(generator.normal(size=(shape.vocab_size, shape.hidden_size))),
        (Part.FINAL_NORM, -1): norm(shape.hidden_size),
        (Part.HEAD, -1): matrix(shape.vocab_size, shape.hidden_size),
    }
    half = shape.head_dim // 2
    angles = np.outer(np.arange(shape.max_positions), 100.0 ** (-np.arange(half) / half))
    parts[Part.COSINES, -1] = np.cos(angles).astype(np.float32)
    parts[Part.SINES, -1] = np.sin(angles).astype(np.float32)
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    for layer in range(shape.num_layers):
        parts[Part.INPUT_NORM, layer] = norm(shape.hidden_size)
        parts[Part.MLP_NORM, layer] = norm(shape.hidden_size)
        parts[Part.QKV, layer] = 2 * matrix(query_size + 2 * kv_size, shape.hidden_size)
        parts[Part.OUT, layer] = matrix(shape.hidden_size, query_size)
        parts[Part.GATE_UP, layer] = matrix(2 * shape.intermediate_size, shape.hidden_size)
        parts[Part.DOWN, layer] = matrix(shape.hidden_size, shape.intermediate_size)
        if shape.has_qkv_bias:
            parts[Part.QKV_BIAS, layer] = norm(query_size + 2 * kv_size)
        if shape.has_qk_norm:
            parts[Part.QUERY_NORM, layer] = norm(shape.head_dim)
            parts[Part.KEY_NORM, layer] = norm(shape.head_dim)
    return Weights(parts=parts)


class Reference:
    """The same model in float64, a sequence at a time, without a cache."""

    def __init__(self, shape: EngineShape, weights: Weights) -> None:
        self._shape = shape
        self._weights = weights

    def logits(self, tokens: list[int]) -> Floats:
        """Return the logits after every token: `[num_tokens, vocab_size]`."""
        of = self._weights.of
        hidden = of(Part.EMBEDDING)[tokens]
        for layer in range(self._shape.num_layers):
            hidden = hidden + self._attended(self._normed(hidden, of(Part.INPUT_NORM, layer)), layer)
            normed = self._normed(hidden, of(Part.MLP_NORM, layer))
            gate, up = np.split(normed @ of(Part.GATE_UP, layer).T, 2, axis=1)
            hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ of(Part.DOWN, layer).T
        result: Floats = self._normed(hidden, of(Part.FINAL_NORM)) @ of(Part.HEAD).T
        return result

    def _normed(self, x: Floats, weight: Floats) -> Floats:
        result: Floats = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._shape.rms_norm_eps) * weight
        return result

    def _attended(self, normed: Floats, layer: int) -> Floats:
        shape, of = self._shape, self._weights.of
        count, half = len(normed), shape.head_dim // 2
        heads = normed @ of(Part.QKV, layer).T
        if shape.has_qkv_bias:
            heads = heads + of(Part.QKV_BIAS, layer)
        heads = heads.reshape(count, -1, shape.head_dim)
        query, key, value = np.split(heads, [shape.num_heads, shape.num_heads + shape.num_kv_heads], axis=1)
        if shape.has_qk_norm:
            query = self._normed(query, of(Part.QUERY_NORM, layer))
            key = self._normed(key, of(Part.KEY_NORM, layer))
        cos, sin = of(Part.COSINES)[:count, None], of(Part.SINES)[:count, None]

        def rotated(x: Floats) -> Floats:
            a, b = x[..., :half], x[..., half:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

        repeats = shape.num_heads // shape.num_kv_heads
        query, key = rotated(query), np.repeat(rotated(key), repeats, axis=1)
        scores = np.einsum("qhd,khd->hqk", query, key) / shape.head_dim**0.5
        distance = np.arange(count)[:, None] - np.arange(count)
        window = shape.sliding_window or count
        scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weights, np.repeat(value, repeats, axis=1))
        result: Floats = out.reshape(count, -1) @ of(Part.OUT, layer).T
        return result


class Rig:
    """An engine with a cache and sequences that each have a row of the block table.

    `stored` parts take the place of random ones; the reference does not know them.
    """

    def __init__(
        self,
        shape: EngineShape,
        path: KernelPath,
        *,
        with_tiles: bool = False,
        threads: int = 2,
        stored: dict[tuple[Part, int], Array | Sequence[StoredTensor]] | None = None,
    ) -> None:
        self.shape = shape
        self.weights = make_weights(shape)
        self.engine = NativeEngine(library_of(path), shape, threads)
        for (part, layer), values in {**self.weights.parts, **(stored or {})}.items():
            self.engine.set(part, values, layer)
        for kind in range(len(MATRIX_KINDS)):
            for bucket in range(NUM_BUCKETS):
                self.engine.use_tiles(kind, bucket, with_tiles=with_tiles)
        self.num_blocks = 1200 // shape.block_size + 40
        self.keys, self.values = self._spoilt_cache(), self._spoilt_cache()
        self.block_table = np.zeros((20, 700 // shape.block_size + 1), dtype=np.int32)
        self._free = np.random.default_rng(1).permutation(self.num_blocks).tolist()
        self._used = [0] * 20

    def _spoilt_cache(self) -> npt.NDArray[np.uint16]:
        """Return a cache whose slots are not numbers: none may matter before it is written.

        Only what pads a head to 32 is zero, as it stays in a cache that began with zeros.
        """
        padded = -(-self.shape.head_dim // 32) * 32
        size = (self.shape.num_layers, self.num_blocks, self.engine.block_elements)
        cache = np.full(size, 0x7FC0, dtype=np.uint16)
        cache.reshape(-1, padded // 2, 16, 2)[:, self.shape.head_dim // 2 :] = 0
        return cache

    def share(self, row: int, other: int, num_blocks: int) -> None:
        """Begin a row with blocks of another one."""
        self.block_table[row, :num_blocks] = self.block_table[other, :num_blocks]
        self._used[row] = num_blocks

    def step(self, *new: tuple[int, int, list[int]], wanted: Sequence[int] | None = None) -> Array:
        """Compute (row, start, tokens) of each sequence: logits of all tokens, `[num_tokens, vocab_size]`.

        With `wanted`, rising places among all tokens, the logits of these only.
        """
        for row, start, tokens in new:
            while self._used[row] * self.shape.block_size < start + len(tokens):
                self.block_table[row, self._used[row]] = self._free.pop()
                self._used[row] += 1
        counts = [len(tokens) for _, _, tokens in new]
        arrays = StepArrays(
            token_ids=np.array([t for _, _, tokens in new for t in tokens], dtype=np.int32),
            positions=np.concatenate([np.arange(s, s + len(t), dtype=np.int32) for _, s, t in new]),
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            lengths=np.array([s + len(t) for _, s, t in new], dtype=np.int32),
            row_index=np.array([row for row, _, _ in new], dtype=np.int32),
            block_table=self.block_table,
            logit_tokens=np.array(range(sum(counts)) if wanted is None else wanted, dtype=np.int32),
        )
        addresses = [
            np.array([layer.ctypes.data for layer in cache], dtype=np.uint64)
            for cache in (self.keys, self.values)
        ]
        best, is_valid, logits = self.engine.step(arrays, *addresses, wants_logits=True)
        assert logits is not None
        assert is_valid.all()
        np.testing.assert_array_equal(best, logits.argmax(axis=1))
        return logits.copy()

    def check(self, tokens: list[int], found: Array) -> None:
        """Compare logits with those of the reference for the last tokens of a sequence."""
        expected = Reference(self.shape, self.weights).logits(tokens)[-len(found) :]
        error, size = found - expected, root_mean_square(expected)
        assert root_mean_square(error) <= TOLERANCE * size
        assert np.abs(error).max() <= 10 * TOLERANCE * size


def tokens_of(count: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, SHAPE.vocab_size, count).tolist()
    return found
