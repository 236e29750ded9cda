"""Residual addition and root mean square normalisation in one pass over a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tidemill_kernels.rms_norm.launch import plan_norm


@triton.jit
def add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    stride_x_row,
    stride_residual_row,
    stride_out_row,
    size,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row per program. The sum is kept in the residual, rounded to its dtype before it is normalised."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    x = tl.load(x_ptr + row * stride_x_row + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        place = residual_ptr + row * stride_residual_row + columns
        x = (x.to(tl.float32) + tl.load(place, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(place, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * stride_out_row + columns, (wide * scale * weight).to(x.dtype), mask=inside)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return the normalised sum of x and residual, `[num_tokens, size]`; residual becomes the sum.

    x, residual: `[num_tokens, size]` with contiguous rows; weight: `[size]`. Without a residual x alone is
    normalised.
    """
    num_tokens, size = x.shape
    out = torch.empty_like(x)
    if num_tokens == 0:
        return out
    launch = plan_norm(size)
    summed = x if residual is None else residual
    add_rms_norm_kernel[(num_tokens,)](
        x,
        summed,
        weight,
        out,
        x.stride(0),
        summed.stride(0),
        out.stride(0),
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK=launch.block,
        num_warps=launch.num_warps,
    )
    return out
