"""Rotary position embeddings, halves split (as in Hugging Face's Llama, not interleaved)."""

from __future__ import annotations

import torch

from tidemill_kernels.rope.reference import rope_reference

__all__ = ["RopeTable", "apply_rope", "rope_reference"]


class RopeTable:
    """Cosines and sines of every position, computed once in float32: `[max_positions, head_dim]`.

    frequency: radians from one position to the next, `[head_dim / 2]` float32.
    """

    def __init__(self, frequency: torch.Tensor, max_positions: int, dtype: torch.dtype) -> None:
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequency)
        both_halves = torch.cat([angles, angles], dim=-1)
        self._cos = both_halves.cos().to(dtype)
        half = len(frequency)
        sin = both_halves.sin()
        sin[:, :half].neg_()
        self._signed_sin = sin.to(dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines at positions `[num_tokens]`: each `[num_tokens, 1, head_dim]`."""
        return self._cos[positions].unsqueeze(1), self._signed_sin[positions].unsqueeze(1)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotate x `[num_tokens, num_heads, head_dim]` by the angles that `RopeTable.at` gave."""
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return torch.addcmul(x * cos, swapped, signed_sin)
