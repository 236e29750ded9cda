"""A directory with config.json and *.safetensors as a source of weights, plain or quantised.

Knows which tensors make up a matrix. Does not know what a model does with one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.config import LlamaConfig, config_from_hf
from tidemill_engine.models.quantization import CheckpointFormat, format_of
from tidemill_engine.models.quantized import Int4Matrix, QuantizedMatrix, ScaledMatrix
from tidemill_engine.safetensors_file import SafetensorsFile

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from tidemill_engine.models.weights import Blocks, Values

    Scales = npt.NDArray[np.float16] | npt.NDArray[np.float32]

_WEIGHT = ".weight"
_STORED = {"awq": ".qweight", "gptq": ".qweight", "scaled": _WEIGHT, "packed": ".weight_packed"}
_SCALES = (".weight_scale", ".weight_scale_inv")
_NOT_NEEDED = (".input_scale", ".k_scale", ".v_scale", ".q_scale", ".activation_scale")
"""Scales of activations and of a cache, which are kept in the model's dtype or scaled as they are."""
_PACKED_ZERO = 0x77777777
"""Eight times 8 as GPTQ stores it, less one: what compressed-tensors adds before it packs."""


class SafetensorsWeights:
    """All tensors of one directory."""

    def __init__(self, directory: Path) -> None:
        fields = _read_json(directory / "config.json")
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ModelLoadError(f"{directory} holds no *.safetensors file", reason="ModelNotFound")
        self._total_bytes = sum(file.stat().st_size for file in files)
        self._files = {
            name: opened for file in files for opened in [SafetensorsFile(file)] for name in opened.names
        }
        self._format = format_of(fields)
        self._config = config_from_hf(fields, frozenset(self._files))
        self._read_bytes = 0
        self._unread = set(self._files)

    @property
    def config(self) -> LlamaConfig:
        """Return the model's shapes."""
        return self._config

    @property
    def quantization(self) -> str | None:
        """Return what config.json calls the way in which matrices are quantised; None for plain ones."""
        return None if self._format is None else self._format.name

    @property
    def total_bytes(self) -> int:
        """Return how many bytes the files take."""
        return self._total_bytes

    @property
    def read_bytes(self) -> int:
        """Return how many bytes of tensors have been read."""
        return self._read_bytes

    def values(self, name: str) -> Values:
        """Read a tensor, bfloat16 as it is, others as float32: of quantised ones what they stand for."""
        matrix = self.quantized(name)
        if matrix is not None:
            return matrix.values()
        values = self._found(name).values(name)
        self._note(name, values.nbytes)
        return values

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """Read a matrix as it is stored; None for one of plain numbers, which nobody has read then."""
        stored = self._format
        if stored is None or not name.endswith(_WEIGHT):
            return None
        module = name.removesuffix(_WEIGHT)
        if module + _STORED[stored.method] not in self._files:
            return None
        if stored.method == "scaled":
            has_scale = any(module + ending in self._files for ending in _SCALES)
            return self._scaled(module, stored) if has_scale else None
        matrix = self._packed(module, stored) if stored.method == "packed" else self._int4(module, stored)
        _check_int4(module, matrix)
        return matrix

    def block_kind(self, name: str) -> str | None:  # noqa: ARG002 - none has blocks
        """Return None: safetensors hold no blocks."""
        return None

    def blocks(self, name: str) -> Blocks:
        """Refuse: there are none."""
        raise ModelLoadError(f"tensor {name} of a safetensors file has no blocks")

    def unread(self) -> list[str]:
        """Return the names of tensors that nobody asked for; zeros that quantisers add are no matter."""
        if self._format is None:
            return sorted(self._unread)
        return sorted(
            name
            for name in self._unread
            if not name.endswith(_NOT_NEEDED) and not (name.endswith(".bias") and self._is_zero(name))
        )

    def _int4(self, module: str, stored: CheckpointFormat) -> Int4Matrix:
        """Read a matrix of AWQ or GPTQ."""
        words, zeros = self._words(module + ".qweight"), self._words(module + ".qzeros")
        scales = self._floats(module + ".scales", num_sides=2)
        is_awq = stored.method == "awq"
        inputs = words.shape[0] * (1 if is_awq else 8)
        group_size = stored.group_size or inputs
        matrix = Int4Matrix(
            words=words,
            zeros=zeros,
            scales=scales,
            group_size=group_size,
            layout="awq" if is_awq else "gptq",
        )
        if is_awq or module + ".g_idx" not in self._files:
            return matrix
        groups = self._raw(module + ".g_idx", "I32")
        if np.array_equal(groups, np.arange(inputs) // group_size):
            return matrix
        if not np.array_equal(np.sort(groups), np.arange(inputs) // group_size):
            raise ModelLoadError(f"{module}.g_idx does not divide its inputs into groups of {group_size}")
        return matrix.sorted_by(groups)

    def _packed(self, module: str, stored: CheckpointFormat) -> Int4Matrix:
        """Read a matrix of four bits as compressed-tensors packs it, along its inputs: GPTQ's, turned."""
        packed = self._words(module + ".weight_packed")
        scales = self._floats(module + ".weight_scale", num_sides=2)
        if module + ".weight_shape" in self._files:
            self._raw(module + ".weight_shape", "I64", "I32")
        if module + ".weight_g_idx" in self._files or module + ".weight_zero_point" in self._files:
            raise ModelLoadError(
                f"{module} has zero points or inputs in another order than its groups, "
                "which is not supported for compressed-tensors",
                reason="UnsupportedModel",
            )
        outputs, inputs = packed.shape[0], packed.shape[1] * 8
        turned: Scales = scales.T
        return Int4Matrix(
            words=np.ascontiguousarray(packed.T),
            zeros=np.full((scales.shape[1], outputs // 8), _PACKED_ZERO, dtype=np.int32),
            scales=turned,
            group_size=stored.group_size or inputs,
            layout="gptq",
        )

    def _scaled(self, module: str, stored: CheckpointFormat) -> ScaledMatrix:
        """Read a matrix of 8 bits; scales: one, one per output, or one per block of both."""
        numbers = self._raw(module + _WEIGHT, "F8_E4M3", "I8", num_sides=2)
        outputs, inputs = numbers.shape
        name = next(module + ending for ending in _SCALES if module + ending in self._files)
        scales = self._floats(name).astype(np.float32)
        if stored.block is not None:
            rows, group_size = min(stored.block[0], outputs), min(stored.block[1], inputs)
            wanted = (-(-outputs // rows), -(-inputs // group_size))
            if scales.shape == wanted:
                every = scales[np.arange(outputs) // rows]
                return ScaledMatrix(
                    numbers=numbers, scales=np.ascontiguousarray(every.T), group_size=group_size
                )
        elif scales.size in {1, outputs}:
            per_output = np.broadcast_to(scales.reshape(1, -1), (1, outputs))
            return ScaledMatrix(numbers=numbers, scales=np.ascontiguousarray(per_output), group_size=inputs)
        raise ModelLoadError(f"{name} of shape {scales.shape} does not fit {numbers.shape}")

    def _words(self, name: str) -> npt.NDArray[np.int32]:
        words: npt.NDArray[np.int32] = self._raw(name, "I32", num_sides=2)
        return words

    def _floats(self, name: str, num_sides: int | None = None) -> Scales:
        """Read scales: float16 as they are, others as float32."""
        file = self._found(name)
        _check_sides(name, file, num_sides)
        if file.dtype_of(name) == "F16":
            halves: npt.NDArray[np.float16] = self._raw(name, "F16")
            return halves
        values = file.values(name)
        self._note(name, values.nbytes)
        if values.dtype == np.uint16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)

    def _raw(self, name: str, *dtypes: str, num_sides: int | None = None) -> Any:
        """Read a tensor as it is, of one of some dtypes."""
        file = self._found(name)
        _check_sides(name, file, num_sides)
        raw = file.raw(name, dtypes)
        self._note(name, raw.nbytes)
        return raw

    def _found(self, name: str) -> SafetensorsFile:
        file = self._files.get(name)
        if file is None:
            raise ModelLoadError(f"the safetensors files have no tensor {name}")
        return file

    def _note(self, name: str, num_bytes: int) -> None:
        self._unread.discard(name)
        self._read_bytes += num_bytes

    def _is_zero(self, name: str) -> bool:
        return not self._files[name].values(name).any()


def _check_sides(name: str, file: SafetensorsFile, num_sides: int | None) -> None:
    """Raise unless a tensor has so many sides; None: any number of them."""
    shape = file.shape_of(name)
    if num_sides not in {None, len(shape)} or (num_sides is not None and 0 in shape):
        raise ModelLoadError(f"tensor {name} of shape {shape} is no part of a quantised matrix")


def _check_int4(module: str, matrix: Int4Matrix) -> None:
    """Raise unless a matrix's tensors fit one another."""
    outputs, inputs = matrix.shape
    groups = -(-inputs // matrix.group_size)
    wanted = (groups, outputs // 8), (groups, outputs)
    found = matrix.zeros.shape, matrix.scales.shape
    if found != wanted or inputs % matrix.group_size or outputs % 8:
        raise ModelLoadError(
            f"{module}: zeros {found[0]} and scales {found[1]} do not fit {outputs} outputs, eight to a "
            f"word, of {inputs} inputs in groups of {matrix.group_size}"
        )


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelLoadError(f"there is no {path}", reason="ModelNotFound") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{path} is not a JSON object")
    return fields
