"""Root mean square normalisation."""

from __future__ import annotations

import torch

from tidemill_kernels.rms_norm.reference import rms_norm_reference

__all__ = ["rms_norm", "rms_norm_reference"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise the last dimension and scale it.

    x: `[..., size]`, weight: `[size]` of the same dtype. The mean square is accumulated in float32.
    """
    if x.shape[-1:] != weight.shape:
        raise ValueError(f"weight {tuple(weight.shape)} does not fit x {tuple(x.shape)}")
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
