"""Weights of a model in its own dtype, made into 8 bits with a scale per output."""

from __future__ import annotations

import torch

from tidemill_kernels.weight_quant import ScaledWeight

_LARGEST = 127
_LARGEST_FP8 = 448


def quantize_int8(weight: torch.Tensor) -> ScaledWeight:
    """Round each row of a weight `[out_features, in_features]` to whole numbers of its largest / 127."""
    wide = weight.float()
    scale = _scale(wide, _LARGEST)
    return ScaledWeight(weight=(wide / scale[:, None]).round().to(torch.int8), scale=scale)


def quantize_fp8(weight: torch.Tensor) -> ScaledWeight:
    """Round each row of a weight `[out_features, in_features]` to float8 e4m3, its largest to 448."""
    wide = weight.float()
    scale = _scale(wide, _LARGEST_FP8)
    return ScaledWeight(weight=(wide / scale[:, None]).to(torch.float8_e4m3fn), scale=scale)


def _scale(wide: torch.Tensor, largest: int) -> torch.Tensor:
    return (wide.abs().amax(dim=1) / largest).clamp(min=torch.finfo(torch.float32).tiny)
