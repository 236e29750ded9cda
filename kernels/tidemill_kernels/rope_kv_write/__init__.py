"""What lies between the QKV product and attention: QK-norm, rotation, writing keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["NARROW_MOST", "QkvLayout", "Rotation"]

NARROW_MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Dtypes of a cache that is narrower than the model, and the number that a head's largest becomes."""


@dataclass(frozen=True, kw_only=True)
class QkvLayout:
    """How heads lie in a row of the QKV product: queries, keys, values, `head_dim` each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.head_dim % 2 or self.head_dim < 2:
            raise ValueError(f"head_dim must be even, not {self.head_dim}")
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads over {self.num_kv_heads} key/value heads")

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """Angles and norms of one layer.

    cos, sin: `[max_positions, head_dim / 2]` float32. q_norm, k_norm: `[head_dim]`, both or neither (Qwen3).
    """

    cos: torch.Tensor
    sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if (self.q_norm is None) != (self.k_norm is None):
            raise ValueError("give q_norm and k_norm, or neither")
