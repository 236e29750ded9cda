"""Weights of a model in its own dtype, made into 8 bits with a scale per output."""

from __future__ import annotations

import torch

from tidemill_kernels.weight_quant import ScaledWeight

_LARGEST = 127


def quantize_int8(weight: torch.Tensor) -> ScaledWeight:
    """Round each row of a weight `[out_features, in_features]` to whole numbers of its largest / 127."""
    wide = weight.float()
    scale = (wide.abs().amax(dim=1) / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    return ScaledWeight(weight=(wide / scale[:, None]).round().to(torch.int8), scale=scale)
