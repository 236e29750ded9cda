"""The Llama family computed by the Triton kernels, and a paged cache on a device.

Knows layers and weights. Does not know requests, steps or sampling: tokens, positions, slots and a way to
attend come in, hidden states go out. Nothing in it waits for the device, so that it can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from tidemill_engine.models.rotary import frequencies
from tidemill_kernels.rms_norm.triton_kernel import add_rms_norm
from tidemill_kernels.rope_kv_write import NARROW_MOST, QkvLayout, Rotation
from tidemill_kernels.rope_kv_write.triton_kernel import rope_kv_write
from tidemill_kernels.silu_mul.triton_kernel import silu_mul

if TYPE_CHECKING:
    from tidemill_engine.models.config import LlamaConfig
    from tidemill_engine.models.llama_weights import LlamaLayer, LlamaWeights
    from tidemill_engine.parallel.group import RankGroup

SCALE_DTYPE = torch.float32
Pair = tuple[torch.Tensor, torch.Tensor]


class Caches(NamedTuple):
    """A layer's keys and values, each `[num_blocks, block_size, num_kv_heads, head_dim]`.

    scales: of keys and values that are narrower than the model's numbers, each `[num_blocks, block_size,
    num_kv_heads]`.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: Pair | None = None


Attend = Callable[[torch.Tensor, Caches], torch.Tensor]
"""From queries `[num_tokens, num_heads, head_dim]` and a layer's keys and values to what they attend to."""


@dataclass(frozen=True, kw_only=True)
class DeviceInputs:
    """One step's tokens, flat: `input_ids`, `positions`, `slot_mapping`, each `[num_tokens]` int64."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    attend: Attend


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """What a cache's blocks are: `dtype` is the model's, or one of `NARROW_MOST`, with scales then."""

    config: LlamaConfig
    block_size: int
    dtype: torch.dtype

    @property
    def is_narrow(self) -> bool:
        """Say whether each head of each slot has a scale."""
        return self.dtype in NARROW_MOST

    @property
    def block_bytes(self) -> int:
        """Return what one block takes over all layers, keys, values and scales."""
        config = self.config
        head_bytes = config.head_dim * self.dtype.itemsize + (SCALE_DTYPE.itemsize if self.is_narrow else 0)
        return 2 * config.num_layers * self.block_size * config.num_kv_heads * head_bytes


class DeviceCache:
    """Keys and values of all layers, `[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]`."""

    def __init__(self, shape: CacheShape, num_blocks: int, device: torch.device) -> None:
        config = shape.config
        heads = (config.num_layers, 2, num_blocks, shape.block_size, config.num_kv_heads)
        # Bytes of float8 are moved as what every operator knows.
        stored = torch.uint8 if shape.dtype == torch.float8_e4m3fn else shape.dtype
        self._stored = torch.zeros((*heads, config.head_dim), dtype=stored, device=device)
        self._blocks = self._stored.view(shape.dtype)
        self._scales = torch.zeros(heads, dtype=SCALE_DTYPE, device=device) if shape.is_narrow else None

    def layer(self, index: int) -> Caches:
        """Return one layer's keys and values."""
        scales = None if self._scales is None else (self._scales[index, 0], self._scales[index, 1])
        return Caches(self._blocks[index, 0], self._blocks[index, 1], scales)

    @property
    def planes(self) -> list[list[torch.Tensor]]:
        """Return what is moved with a block: of one dtype all layers' keys and values, one after another."""
        every = [self._stored] if self._scales is None else [self._stored, self._scales]
        return [list(plane.flatten(0, 1)) for plane in every]


class DeviceLlama:
    """Weights on a device, ready to compute."""

    def __init__(self, weights: LlamaWeights, max_model_len: int, group: RankGroup) -> None:
        self.group = group
        self.config = weights.config
        self.weights = weights
        self._layout = QkvLayout(
            num_heads=self.config.num_heads,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
        )
        angles = _angles(self.config, max_model_len).to(weights.embedding.device)
        cos, sin = angles.cos(), angles.sin()
        self._rotations = [self._rotation(layer, cos, sin) for layer in weights.layers]

    @property
    def scale(self) -> float:
        """Return what attention scores are multiplied by."""
        return 1 / math.sqrt(self.config.head_dim)

    def forward(self, inputs: DeviceInputs, cache: DeviceCache) -> torch.Tensor:
        """Compute one step, writing keys and values: last hidden states `[num_tokens, hidden_size]`."""
        eps, group = self.config.rms_norm_eps, self.group
        hidden = torch.nn.functional.embedding(inputs.input_ids, self.weights.embedding)
        residual: torch.Tensor | None = None
        for index, layer in enumerate(self.weights.layers):
            caches = cache.layer(index)
            normed = add_rms_norm(hidden, residual, layer.input_norm, eps)
            residual = hidden if residual is None else residual
            query = rope_kv_write(
                layer.qkv(normed),
                inputs.positions,
                inputs.slot_mapping,
                (caches.keys, caches.values),
                self._layout,
                self._rotations[index],
                caches.scales,
            )
            attended = inputs.attend(query, caches)
            hidden = group.sum(layer.out(attended.flatten(1)))
            normed = add_rms_norm(hidden, residual, layer.mlp_norm, eps)
            hidden = group.sum(layer.down(silu_mul(layer.gate_up(normed))))
        return add_rms_norm(hidden, residual, self.weights.norm, eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `[num_rows, vocab_size]`, in the model's dtype, for hidden `[num_rows, hidden_size]`."""
        if len(hidden) == 0:
            return hidden.new_empty((0, self.config.vocab_size))
        return self.group.join_columns(self.weights.head(hidden))[:, : self.config.vocab_size]

    def _rotation(self, layer: LlamaLayer, cos: torch.Tensor, sin: torch.Tensor) -> Rotation:
        return Rotation(
            cos=cos,
            sin=sin,
            q_norm=layer.query_norm,
            k_norm=layer.key_norm,
            eps=self.config.rms_norm_eps,
        )


def _angles(config: LlamaConfig, max_positions: int) -> torch.Tensor:
    """Return every position's angles: `[max_positions, head_dim / 2]` float32."""
    frequency = torch.from_numpy(frequencies(config))
    return torch.outer(torch.arange(max_positions, dtype=torch.float32), frequency)
