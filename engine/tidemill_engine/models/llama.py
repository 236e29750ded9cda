"""The Llama family (Llama, Mistral, SmolLM, Qwen2, Qwen3) over flat tokens and a paged cache.

Knows layers and weights. Does not know requests, steps or sampling: tokens, positions, slots and an
attention plan come in, hidden states go out.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tidemill_engine.models.llama_weights import LlamaLayer, LlamaWeights, Placement, load_llama_weights
from tidemill_engine.models.rotary import frequencies
from tidemill_engine.parallel.group import Alone, RankGroup
from tidemill_kernels.paged_attention import AttentionPlan, paged_attention, store_kv
from tidemill_kernels.rms_norm import rms_norm
from tidemill_kernels.rope import RopeTable, apply_rope
from tidemill_kernels.silu_mul import silu_mul

if TYPE_CHECKING:
    from tidemill_engine.models.config import LlamaConfig
    from tidemill_engine.models.weights import WeightSource


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """One step's tokens, flat: `input_ids`, `positions`, `slot_mapping`, each `[num_tokens]` int64."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    attention: AttentionPlan


@dataclass(frozen=True, kw_only=True)
class KVCache:
    """Keys and values per layer: each `[num_blocks, block_size, num_kv_heads, head_dim]`."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @staticmethod
    def allocate(config: LlamaConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> KVCache:
        """Make an empty cache; the system backs its memory as it is first used."""
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        layers = range(config.num_layers)
        return KVCache(
            keys=tuple(lazy_zeros(shape, dtype) for _ in layers),
            values=tuple(lazy_zeros(shape, dtype) for _ in layers),
        )

    def take_from(self, other: KVCache, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy whole blocks of all layers from another cache with like blocks, or from this one."""
        for mine, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            mine.index_copy_(0, targets, theirs.index_select(0, sources))


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take no memory until they are written; `torch.zeros` writes them all at once."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class LlamaModel:
    """Weights in place, ready to compute."""

    def __init__(self, weights: LlamaWeights, max_model_len: int, group: RankGroup) -> None:
        self.group = group
        self.config = weights.config
        self.dtype = weights.embedding.dtype
        self._rope = RopeTable(torch.from_numpy(frequencies(self.config)), max_model_len, self.dtype)
        self._embedding = weights.embedding
        self._layers = weights.layers
        self._norm = weights.norm
        self._head = weights.head

    @staticmethod
    def load(
        source: WeightSource,
        dtype: torch.dtype,
        max_model_len: int,
        report: Callable[[int, int], None] = lambda _read, _total: None,
        group: RankGroup | None = None,
    ) -> LlamaModel:
        """Read every weight, or this rank's part of it, from a source, reporting after each layer."""
        group = group or Alone()
        placement = Placement(dtype=dtype, shard=group.shard)
        return LlamaModel(load_llama_weights(source, placement, report), max_model_len, group)

    def forward(self, inputs: ModelInputs, cache: KVCache) -> torch.Tensor:
        """Compute one step, writing keys and values: last hidden states `[num_tokens, hidden_size]`."""
        eps = self.config.rms_norm_eps
        cos, signed_sin = self._rope.at(inputs.positions)
        hidden = torch.nn.functional.embedding(inputs.input_ids, self._embedding)
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            normed = rms_norm(hidden, layer.input_norm, eps)
            query, key, value = self._query_key_value(layer, normed, cos, signed_sin)
            store_kv(keys, key, inputs.slot_mapping)
            store_kv(values, value, inputs.slot_mapping)
            attended = paged_attention(query, keys, values, inputs.attention)
            hidden = hidden + self.group.sum(layer.out(attended.flatten(1)))
            normed = rms_norm(hidden, layer.mlp_norm, eps)
            hidden = hidden + self.group.sum(layer.down(silu_mul(layer.gate_up(normed))))
        return rms_norm(hidden, self._norm, eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `[num_rows, vocab_size]` float32 for chosen hidden states `[num_rows, hidden_size]`."""
        if len(hidden) == 0:
            return torch.empty(0, self.config.vocab_size)
        return self.group.join_columns(self._head(hidden))[:, : self.config.vocab_size].float()

    def _query_key_value(
        self, layer: LlamaLayer, normed: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return rotated queries and keys, and values: each `[num_tokens, heads, head_dim]`."""
        config = self.config
        heads = layer.qkv(normed).view(len(normed), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated, value = heads[:, :num_rotated], heads[:, num_rotated:]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(rotated[:, : config.num_heads], layer.query_norm, config.rms_norm_eps)
            key = rms_norm(rotated[:, config.num_heads :], layer.key_norm, config.rms_norm_eps)
            rotated = torch.cat([query, key], dim=1)
        rotated = apply_rope(rotated, cos, signed_sin)
        return rotated[:, : config.num_heads], rotated[:, config.num_heads :], value
