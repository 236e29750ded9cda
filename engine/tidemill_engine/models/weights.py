"""Tensors by their Hugging Face names, wherever they lie: a GGUF file or safetensors files.

Knows names, formats and quantisations. Does not know what a model does with a tensor, nor any library that
computes: values are numpy's, in float32, or in uint16 where they are bfloat16.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.gguf_file import GgufHead, GgufTensor, read_gguf_head
from tidemill_engine.models.config import LlamaConfig, config_from_gguf
from tidemill_engine.models.safetensors_weights import SafetensorsWeights

if TYPE_CHECKING:
    from tidemill_engine.models.quantized import QuantizedMatrix

_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HF_NAMES = {name: gguf_name for gguf_name, name in _GGUF_NAMES.items()}
Values = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
_BLOCK_ITEMS = 32
_BLOCK_KINDS = {3: ("q4_1", 20), 8: ("q8_0", 34)}
"""ggml types whose blocks are passed on as they are: name, and bytes of 32 numbers (ggml-common.h)."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A quantised tensor as the file has it: `[rows, bytes of a row]` uint8, in blocks of a kind.

    Where `interleaved_heads` is not 0, the halves of so many heads' rows come in turns.
    """

    data: npt.NDArray[np.uint8]
    kind: str
    columns: int
    interleaved_heads: int = 0


class WeightSource(Protocol):
    """Tensors by Hugging Face name, read when asked for."""

    @property
    def config(self) -> LlamaConfig:
        """Return the model's shapes."""

    @property
    def total_bytes(self) -> int:
        """Return how many bytes all tensors take in the files."""

    @property
    def read_bytes(self) -> int:
        """Return how many of them have been read."""

    def values(self, name: str) -> Values:
        """Read a tensor, float32 or bfloat16 as uint16; a missing one is a `ModelLoadError`."""

    @property
    def quantization(self) -> str | None:
        """Return the name of the way in which matrices can be had `quantized`; None where none can."""

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """Read a matrix as the files have it; None for one of plain numbers, which is not read."""

    def unread(self) -> list[str]:
        """Return the names, as the file has them, of tensors that nobody asked for."""


class StoredWeights(WeightSource, Protocol):
    """Tensors of which some can be had as the file has them."""

    def block_kind(self, name: str) -> str | None:
        """Return the kind of blocks of a tensor; None for plain numbers, and for what is not there."""

    def blocks(self, name: str) -> Blocks:
        """Read a tensor that has a `block_kind` without changing it."""


def open_weights(path: Path) -> StoredWeights:
    """Open a .gguf file or a directory of safetensors."""
    if path.is_dir():
        return SafetensorsWeights(path)
    if path.suffix == ".gguf":
        return GgufWeights(path)
    raise ModelLoadError(
        f"{path.name} is neither a .gguf file nor a directory with config.json and *.safetensors",
        reason="UnsupportedModel",
    )


class GgufWeights:
    """A GGUF file, each tensor dequantised as it is read."""

    def __init__(self, path: Path) -> None:
        self._head: GgufHead = read_gguf_head(path)
        self._data = np.memmap(path, mode="r", dtype=np.uint8)
        self._config = config_from_gguf(self._head.metadata, frozenset(self._head.tensors))
        self._is_permuted = self._head.metadata["general.architecture"] == "llama"
        self._read_bytes = 0
        self._unread = set(self._head.tensors)
        if "rope_freqs.weight" in self._head.tensors:  # what Llama 3.1 divides its frequencies by
            divisors = self._dequantised(self._take("rope_freqs.weight"))
            evenly = (self._config.rope_divisors or (1.0,))[0]  # llama.cpp computes both
            self._config = replace(self._config, rope_divisors=tuple((divisors * evenly).tolist()))

    @property
    def config(self) -> LlamaConfig:
        """Return the model's shapes."""
        return self._config

    @property
    def total_bytes(self) -> int:
        """Return how many bytes all tensors take in the file."""
        return len(self._data) - min(tensor.offset for tensor in self._head.tensors.values())

    @property
    def read_bytes(self) -> int:
        """Return how many of them have been read."""
        return self._read_bytes

    def values(self, name: str) -> Values:
        """Read a tensor as float32."""
        values = self._dequantised(self._take(name))
        heads = self._interleaved_heads(name)
        return unpermuted(values, heads) if heads else values

    @property
    def quantization(self) -> str | None:
        """Return None: blocks of GGUF are had as such, or dequantised."""
        return None

    def quantized(self, name: str) -> QuantizedMatrix | None:  # noqa: ARG002 - there is none
        """Return None."""
        return None

    def block_kind(self, name: str) -> str | None:
        """Return the kind of blocks that the kernels take as they are."""
        found = self._head.tensors.get(gguf_name(name))
        if found is None or len(found.shape) != 2 or found.shape[1] % _BLOCK_ITEMS:
            return None
        return _BLOCK_KINDS.get(found.type_id, (None, 0))[0]

    def blocks(self, name: str) -> Blocks:
        """Return a tensor's bytes."""
        found = self._take(name)
        kind, block_bytes = _BLOCK_KINDS[found.type_id]
        num_bytes = found.num_elements // _BLOCK_ITEMS * block_bytes
        return Blocks(
            data=self._raw(found, num_bytes).reshape(found.shape[0], -1),
            kind=kind,
            columns=found.shape[1],
            interleaved_heads=self._interleaved_heads(name),
        )

    def unread(self) -> list[str]:
        """Return the names of tensors that nobody asked for."""
        return sorted(self._unread)

    def _take(self, name: str) -> GgufTensor:
        """Find a tensor and note that it was asked for."""
        found = self._head.tensors.get(gguf_name(name))
        if found is None:
            raise ModelLoadError(f"the GGUF file has no tensor {gguf_name(name)} ({name})")
        self._unread.discard(found.name)
        return found

    def _interleaved_heads(self, name: str) -> int:
        """Return how many heads of a tensor have their halves in turns; 0 for none."""
        if not self._is_permuted or not name.endswith(("q_proj.weight", "k_proj.weight")):
            return 0
        return self._config.num_heads if "q_proj" in name else self._config.num_kv_heads

    def _raw(self, tensor: GgufTensor, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a tensor's bytes in the file and count them as read."""
        raw = self._data[tensor.offset : tensor.offset + num_bytes]
        if len(raw) != num_bytes:
            raise ModelLoadError(f"the GGUF file ends within the tensor {tensor.name}")
        self._read_bytes += num_bytes
        return raw

    def _dequantised(self, tensor: GgufTensor) -> npt.NDArray[np.float32]:
        """Return a tensor's values in its shape."""
        import gguf  # noqa: PLC0415 - slow to import, and only GGUF files need it

        try:
            kind = gguf.GGMLQuantizationType(tensor.type_id)
            items_per_block, bytes_per_block = gguf.GGML_QUANT_SIZES[kind]
            raw = self._raw(tensor, tensor.num_elements // items_per_block * bytes_per_block)
            rows = raw.reshape(*tensor.shape[:-1], -1)
            values = np.array(gguf.dequantize(rows, kind), dtype=np.float32).reshape(tensor.shape)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise ModelLoadError(f"tensor {tensor.name} has a format that can't be read: {error}") from error
        return values


def gguf_name(name: str) -> str:
    """Return a tensor's GGUF name for its Hugging Face name."""
    stem, _, kind = name.rpartition(".")
    layer = _LAYER.fullmatch(stem)
    if layer is None:
        return f"{_HF_NAMES.get(stem, stem)}.{kind}"
    number, part = layer.groups()
    return f"blk.{number}.{_HF_NAMES.get(part, part)}.{kind}"


def unpermuted(weight: Values, num_heads: int) -> Values:
    """Undo the row order of llama's q and k in GGUF, which interleaves the halves of each head."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
