"""A model's weights and whole steps inside the C++ library, as arrays of numpy.

Knows the C interface and who owns which memory. Does not know where weights come from, nor requests.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidemill_kernels.native.library import Draw, ModelConfig, Step, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = npt.NDArray[Any]
FORMATS = {"bf16": 0, "int8": 1, "int4": 2, "q4_1": 3, "q8_0": 4}
"""How matrices are held; q4_1 and q8_0 as in the GGUF file, computed as the bfloat16 that they stand for."""
KINDS = {"float32": 0, "bf16": 1, "q4_1": 2, "q8_0": 3}
"""How tensors come."""
MATRIX_KINDS = ("qkv", "out", "gate_up", "down", "head")
NUM_BUCKETS = 9
SECTIONS = ("embed", "norm", "qkv", "rope", "attention", "out", "gate_up", "down", "head")
LARGEST_GROUP = 32
"""Query heads that may share a key/value head."""
LARGEST_HEAD_DIM = 512
WHOLE_MODEL = -1


class Part(IntEnum):
    """A piece of the weights: of a layer, then of the whole model; `Part` of model.h."""

    INPUT_NORM = 0
    QKV = 1
    QKV_BIAS = 2
    QUERY_NORM = 3
    KEY_NORM = 4
    OUT = 5
    MLP_NORM = 6
    GATE_UP = 7
    DOWN = 8
    EMBEDDING = 9
    FINAL_NORM = 10
    HEAD = 11
    COSINES = 12
    SINES = 13


@dataclass(frozen=True, kw_only=True)
class EngineShape:
    """What a model looks like; `weights` and `head` are formats, `sliding_window` 0 where there is none."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    block_size: int
    rms_norm_eps: float
    sliding_window: int = 0
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    weights: str = "bf16"
    head: str = "bf16"


@dataclass(frozen=True, kw_only=True)
class StepArrays:
    """One step, all int32: flat tokens, then sequences; `starts` has one entry more than `lengths`."""

    token_ids: Array
    positions: Array
    starts: Array
    lengths: Array
    row_index: Array
    block_table: Array
    logit_tokens: Array


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor as a file has it: `data` are its rows' bytes, one after the other, of a kind in `KINDS`.

    Where `interleaved_heads` is not 0, the halves of so many heads' rows come in turns and are put in order.
    """

    data: Array
    kind: str
    rows: int
    columns: int
    interleaved_heads: int = 0


class NativeEngine:
    """Owns the weights, the threads and the buffers of one model."""

    def __init__(self, library: ctypes.CDLL, shape: EngineShape, num_threads: int) -> None:
        if shape.num_heads // shape.num_kv_heads > LARGEST_GROUP:
            raise ValueError(f"at most {LARGEST_GROUP} query heads may share a key/value head")
        if shape.head_dim > LARGEST_HEAD_DIM:
            raise ValueError(f"a head may have at most {LARGEST_HEAD_DIM} numbers, not {shape.head_dim}")
        self.shape = shape
        self._library = library
        config = ModelConfig(
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocab_size,
            max_positions=shape.max_positions,
            block_size=shape.block_size,
            sliding_window=shape.sliding_window,
            has_qkv_bias=shape.has_qkv_bias,
            has_qk_norm=shape.has_qk_norm,
            format=FORMATS[shape.weights],
            head_format=FORMATS[shape.head],
            num_threads=num_threads,
            eps=shape.rms_norm_eps,
        )
        self._handle = library.tm_engine_new(ctypes.byref(config))
        if not self._handle:
            raise MemoryError(f"memory for the weights or for {num_threads} threads was refused")
        self._logits = np.empty((0, shape.vocab_size), dtype=np.float32)

    def close(self) -> None:
        """Give threads and memory back; the engine is not to be used afterwards."""
        if self._handle:
            self._library.tm_engine_free(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()

    @property
    def has_tiles(self) -> bool:
        """Say whether matrices may be multiplied with AMX."""
        return bool(self._library.tm_has_tiles())

    @property
    def block_elements(self) -> int:
        """Return the bfloat16 numbers of one layer's keys (or values) in one block."""
        return int(self._library.tm_engine_block_elements(self._handle))

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """Return all weights as they lie in memory, to be saved or filled."""
        count = self._library.tm_engine_memory_bytes(self._handle)
        address = self._library.tm_engine_memory(self._handle)
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))

    def set(self, part: Part, values: Array | Sequence[StoredTensor], layer: int = WHOLE_MODEL) -> None:
        """Take in a part: `[rows, columns]` or `[size]`, float32 or bfloat16 as uint16, or stored tensors.

        Stored tensors lie above one another. A `ValueError` says that a part has another size, or that its
        format can't hold such tensors.
        """
        stored = [stored_array(values)] if isinstance(values, np.ndarray) else list(values)
        tensors = (Tensor * len(stored))(
            *(
                Tensor(
                    data=tensor.data.ctypes.data,
                    kind=KINDS[tensor.kind],
                    heads=tensor.interleaved_heads,
                    rows=tensor.rows,
                    inputs=tensor.columns,
                )
                for tensor in stored
            )
        )
        if self._library.tm_engine_set(self._handle, layer, part, tensors, len(stored)) != 0:
            shapes = ", ".join(f"{tensor.rows} by {tensor.columns} {tensor.kind}" for tensor in stored)
            raise ValueError(f"{part.name} of layer {layer} can't be {shapes}")

    def step(
        self, arrays: StepArrays, keys: Array, values: Array, *, wants_logits: bool
    ) -> tuple[Array, Array, Array | None]:
        """Compute a step: each row's best token, whether its logits are numbers, and all logits if wanted.

        `keys` and `values`: each layer's cache address, uint64. The logits `[num_rows, vocab_size]` float32
        are a view that the next step overwrites.
        """
        count = len(arrays.logit_tokens)
        best = np.empty(count, dtype=np.int32)
        is_valid = np.empty(count, dtype=np.uint8)
        if wants_logits and len(self._logits) < count:
            self._logits = np.empty(
                (max(count, 2 * len(self._logits)), self.shape.vocab_size), dtype=np.float32
            )
        step = Step(
            num_tokens=len(arrays.token_ids),
            num_sequences=len(arrays.lengths),
            num_logits=count,
            token_ids=arrays.token_ids.ctypes.data,
            positions=arrays.positions.ctypes.data,
            starts=arrays.starts.ctypes.data,
            lengths=arrays.lengths.ctypes.data,
            row_index=arrays.row_index.ctypes.data,
            block_table=arrays.block_table.ctypes.data,
            block_stride=arrays.block_table.shape[1],
            keys=keys.ctypes.data,
            values=values.ctypes.data,
            logit_tokens=arrays.logit_tokens.ctypes.data,
            logits=self._logits.ctypes.data if wants_logits else None,
            logit_stride=self.shape.vocab_size,
            best=best.ctypes.data,
            is_valid=is_valid.ctypes.data,
        )
        if self._library.tm_engine_step(self._handle, ctypes.byref(step)) != 0:
            raise MemoryError("the step's buffers do not fit into memory")
        return best, is_valid.view(np.bool_), self._logits[:count] if wants_logits else None

    def draw(self, logits: Array, rows: Array, draws: Sequence[Draw]) -> Array:
        """Draw a token for each of the rows (int32 indices into logits): `[len(rows)]` int32."""
        tokens = np.empty(len(rows), dtype=np.int32)
        self._library.tm_engine_draw(
            self._handle,
            logits.ctypes.data,
            logits.shape[1],
            logits.shape[1],
            len(rows),
            rows.ctypes.data,
            (Draw * len(draws))(*draws),
            tokens.ctypes.data,
        )
        return tokens

    def take_times(self) -> dict[str, float]:
        """Return the seconds that each section took since the last call."""
        seconds = (ctypes.c_double * len(SECTIONS))()
        self._library.tm_engine_times(self._handle, seconds)
        return dict(zip(SECTIONS, seconds, strict=True))

    def time_matrix(self, kind: int, num_rows: int, *, with_tiles: bool, repeats: int) -> float:
        """Return the seconds of a product of that many rows with a matrix of that kind.

        It is the mean over all layers in turn in the best of `repeats` rounds; for `WHOLE_MODEL` the seconds
        of all layers' matrices in the order of a step.
        """
        return float(
            self._library.tm_engine_time_matrix(self._handle, kind, num_rows, int(with_tiles), repeats)
        )

    def use_tiles(self, kind: int, bucket: int, *, with_tiles: bool) -> None:
        """Choose how products of a kind and a bucket of rows are computed."""
        self._library.tm_engine_set_way(self._handle, kind, bucket, int(with_tiles))


def stored_array(values: Array) -> StoredTensor:
    """Return an array `[..., columns]` of float32, or of bfloat16 as uint16, as a stored tensor."""
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    if rows.dtype not in {np.dtype(np.float32), np.dtype(np.uint16)}:
        raise TypeError(f"weights are float32 or bfloat16 as uint16, not {rows.dtype}")
    kind = "bf16" if rows.dtype == np.uint16 else "float32"
    return StoredTensor(data=rows, kind=kind, rows=rows.shape[0], columns=rows.shape[1])
