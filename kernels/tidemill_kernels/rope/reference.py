"""The oracle: each pair of halves rotated by its angle, in float64."""

from __future__ import annotations

import torch


def rope_reference(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotate x `[num_tokens, num_heads, head_dim]` at positions `[num_tokens]`."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions.double()[:, None] * frequency)[:, None, :]
    first, second = x.double().chunk(2, dim=-1)
    rotated = torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )
    return rotated.to(x.dtype)
