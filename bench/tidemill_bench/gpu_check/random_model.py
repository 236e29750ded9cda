"""A model of given shapes, its weights meaning nothing, as a source of weights; nothing is read or stored."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tidemill_engine.models.config import LlamaConfig
from tidemill_engine.models.llama_weights import tensor_shape

LLAMA_8B = LlamaConfig(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14_336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    max_model_len=131_072,
    rope_theta=500_000.0,
    rms_norm_eps=1e-5,
    has_tied_embeddings=False,
)
TINY = LlamaConfig(
    num_layers=2,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=64,
    max_model_len=256,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    has_tied_embeddings=False,
)
_POOL = 1 << 22


class RandomWeights:
    """Numbers of the size that trained ones have, drawn once and dealt out again and again."""

    def __init__(self, config: LlamaConfig) -> None:
        self._config = config
        drawn = np.random.default_rng(0).standard_normal(_POOL, dtype=np.float32)
        self._pool = (drawn / math.sqrt(config.hidden_size)).view(np.uint32)

    @property
    def config(self) -> LlamaConfig:
        """Return the model's shapes."""
        return self._config

    @property
    def total_bytes(self) -> int:
        """Return nothing: no file is read."""
        return 0

    @property
    def read_bytes(self) -> int:
        """Return nothing: no file is read."""
        return 0

    def values(self, name: str) -> npt.NDArray[np.uint16]:
        """Return a tensor in bfloat16, its upper half of a float32; norms are 1."""
        shape = tensor_shape(self._config, name)
        if name.endswith("norm.weight"):
            return np.full(shape, 0x3F80, dtype=np.uint16)
        upper = (self._pool >> 16).astype(np.uint16)
        return np.resize(upper, shape)

    @property
    def quantization(self) -> None:
        """Return None: its numbers are plain."""
        return

    def quantized(self, name: str) -> None:  # noqa: ARG002 - none is
        """Return None."""
        return

    def unread(self) -> list[str]:
        """Return no names."""
        return []


def num_weight_bytes(config: LlamaConfig, itemsize: int) -> int:
    """Return what a decode step must read of the weights: every matrix but the embedding."""
    attention = 2 * config.hidden_size * (config.query_size + config.kv_size)
    per_layer = attention + 3 * config.hidden_size * config.intermediate_size
    return itemsize * (config.num_layers * per_layer + config.vocab_size * config.hidden_size)
