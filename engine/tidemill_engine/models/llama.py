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

import numpy as np
import torch

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.parallel.group import Alone, RankGroup
from tidemill_kernels.linear import PackedLinear
from tidemill_kernels.paged_attention import AttentionPlan, paged_attention, store_kv
from tidemill_kernels.rms_norm import rms_norm
from tidemill_kernels.rope import RopeTable, apply_rope
from tidemill_kernels.silu_mul import silu_mul

if TYPE_CHECKING:
    from tidemill_engine.models.config import LlamaConfig
    from tidemill_engine.models.sharding import Shard
    from tidemill_engine.models.weights import WeightSource

_HARMLESS_TENSORS = ("rotary_emb.inv_freq", "lm_head.weight")


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


@dataclass(frozen=True, kw_only=True)
class LlamaLayer:
    """One layer's weights; q, k and v are one matrix, gate and up another."""

    input_norm: torch.Tensor
    qkv: PackedLinear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: PackedLinear
    mlp_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear


class LlamaModel:
    """Weights in place, ready to compute."""

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, max_model_len: int, group: RankGroup | None = None
    ) -> None:
        self.group = group or Alone()
        self.config = self.group.shard.of(source.config)
        self.dtype = dtype
        self._rope = RopeTable(self.config.head_dim, max_model_len, self.config.rope_theta, dtype)
        self._embedding: torch.Tensor
        self._layers: list[LlamaLayer] = []
        self._norm: torch.Tensor
        self._head: PackedLinear

    @staticmethod
    def load(
        source: WeightSource,
        dtype: torch.dtype,
        max_model_len: int,
        report: Callable[[int, int], None] = lambda _read, _total: None,
        group: RankGroup | None = None,
    ) -> LlamaModel:
        """Read every weight, or this rank's part of it, from a source, reporting after each layer."""
        model = LlamaModel(source, dtype, max_model_len, group)
        loader = _LayerLoader(source, dtype, model.group.shard)
        model._embedding = loader.tensor("model.embed_tokens.weight")
        for index in range(source.config.num_layers):
            model._layers.append(loader.layer(index))
            report(source.read_bytes, source.total_bytes)
        model._norm = loader.tensor("model.norm.weight")
        is_tied = source.config.has_tied_embeddings
        head = model._embedding if is_tied else loader.tensor("lm_head.weight")
        model._head = PackedLinear(loader.output_rows(head))
        unread = [name for name in source.unread() if not name.endswith(_HARMLESS_TENSORS)]
        if unread:
            raise ModelLoadError(
                f"the model has tensors that this engine does not compute: {', '.join(unread[:5])}",
                reason="UnsupportedModel",
            )
        report(source.total_bytes, source.total_bytes)
        return model

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


_ALL = slice(None)


def _times(span: slice, width: int) -> slice:
    """Return a span of heads as a span of rows."""
    return slice(span.start * width, span.stop * width)


class _LayerLoader:
    """Reads and fuses one layer's tensors at a time, of each matrix the part of one shard."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, shard: Shard) -> None:
        self._source = source
        self._dtype = dtype
        self._shard = shard
        config, dim = source.config, source.config.head_dim
        query, kv = _times(shard.query_heads(config), dim), _times(shard.kv_heads(config), dim)
        mlp = shard.mlp_columns(config)
        self._rows = {"q_proj": query, "k_proj": kv, "v_proj": kv, "gate_proj": mlp, "up_proj": mlp}
        self._columns = {"o_proj": query, "down_proj": mlp}

    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor, or the shard's part of it, in the model's dtype."""
        part = name.split(".")[-2]
        places = (self._rows.get(part, _ALL), self._columns.get(part, _ALL))
        read = self._source.values(name)
        values = torch.from_numpy(np.array(read[places[: read.ndim]]))
        if values.dtype == torch.uint16:
            values = values.view(torch.bfloat16)
        return values.to(self._dtype).contiguous()

    def output_rows(self, head: torch.Tensor) -> torch.Tensor:
        """Return the shard's rows of the output matrix, filled up with zeros to every rank's width."""
        count = len(head)
        mine = head[self._shard.vocabulary(count)]
        missing = self._shard.vocabulary_width(count) - len(mine)
        return mine if missing == 0 else torch.nn.functional.pad(mine, (0, 0, 0, missing))

    def layer(self, index: int) -> LlamaLayer:
        """Read one layer."""
        config = self._source.config
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        qkv = tuple(attention + part for part in ("q_proj", "k_proj", "v_proj"))
        return LlamaLayer(
            input_norm=self.tensor(prefix + "input_layernorm.weight"),
            qkv=self._fused(qkv, has_bias=config.has_qkv_bias),
            query_norm=self.tensor(attention + "q_norm.weight") if config.has_qk_norm else None,
            key_norm=self.tensor(attention + "k_norm.weight") if config.has_qk_norm else None,
            out=self._fused((attention + "o_proj",)),
            mlp_norm=self.tensor(prefix + "post_attention_layernorm.weight"),
            gate_up=self._fused((prefix + "mlp.gate_proj", prefix + "mlp.up_proj")),
            down=self._fused((prefix + "mlp.down_proj",)),
        )

    def _fused(self, names: tuple[str, ...], *, has_bias: bool = False) -> PackedLinear:
        """Read matrices that share their input and put them above one another."""
        weight = torch.cat([self.tensor(name + ".weight") for name in names])
        bias = torch.cat([self.tensor(name + ".bias") for name in names]) if has_bias else None
        return PackedLinear(weight, bias)
