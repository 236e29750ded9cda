"""Products that read 8 or 4 bits per weight and widen them on the way to the matrix unit.

Products of float32 are those of float32 (ieee), not of its upper 19 bits, as Triton would have it by default.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tidemill_kernels.weight_quant import PackedInt4, ScaledWeight
from tidemill_kernels.weight_quant.launch import plan_product


@triton.jit(do_not_specialize=["num_tokens"])
def scaled_linear_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    out_ptr,
    num_tokens,
    out_features,
    in_features,
    stride_x_token,
    stride_weight_out,
    stride_out_token,
    GROUP_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Compute one tile; a column's only scale (GROUP_SIZE 0) is applied once, to the finished sum.

    With groups an iteration lies within one, and its product is scaled before it is added.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = rows < num_tokens, columns < out_features
    summed = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in range(0, in_features, INPUTS):
        inputs = start + tl.arange(0, INPUTS)
        is_input = inputs < in_features
        places = rows[:, None].to(tl.int64) * stride_x_token + inputs[None, :]
        x = tl.load(x_ptr + places, mask=is_row[:, None] & is_input[None, :], other=0.0)
        places = columns[None, :].to(tl.int64) * stride_weight_out + inputs[:, None]
        weight = tl.load(weight_ptr + places, mask=is_column[None, :] & is_input[:, None], other=0.0)
        # Through float32: before sm_90 there is no way from 8 bits of float to 16 of the other kind.
        weight = weight.to(tl.float32).to(x.dtype)
        if GROUP_SIZE > 0:
            group = tl.full([], 0, tl.int64) + start // GROUP_SIZE
            scale = tl.load(scale_ptr + group * out_features + columns, mask=is_column, other=0.0)
            summed += tl.dot(x, weight, input_precision="ieee") * scale[None, :]
        else:
            summed += tl.dot(x, weight, input_precision="ieee")
    if GROUP_SIZE == 0:
        summed *= tl.load(scale_ptr + columns, mask=is_column, other=0.0)[None, :]
    places = rows[:, None].to(tl.int64) * stride_out_token + columns[None, :]
    tl.store(out_ptr + places, summed.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["num_tokens"])
def int4_linear_kernel(
    x_ptr,
    words_ptr,
    zeros_ptr,
    scales_ptr,
    out_ptr,
    num_tokens,
    out_features,
    in_features,
    stride_x_token,
    stride_out_token,
    GROUP_SIZE: tl.constexpr,
    IS_AWQ: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    """Compute one tile; an iteration lies within one group, so zero and scale are a row of columns."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = rows < num_tokens, columns < out_features
    words_per_row = out_features // 8
    eighth = columns % 8
    # Of eight columns AWQ keeps the even ones in the lower half of a word, the odd ones in the upper.
    shifts = 4 * (eighth // 2 + 4 * (eighth % 2)) if IS_AWQ else 4 * eighth
    summed = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for start in range(0, in_features, INPUTS):
        inputs = start + tl.arange(0, INPUTS)
        is_input = inputs < in_features
        group = tl.full([], 0, tl.int64) + start // GROUP_SIZE
        places = rows[:, None].to(tl.int64) * stride_x_token + inputs[None, :]
        x = tl.load(x_ptr + places, mask=is_row[:, None] & is_input[None, :], other=0.0)
        mask = is_input[:, None] & is_column[None, :]
        if IS_AWQ:
            places = inputs[:, None].to(tl.int64) * words_per_row + columns[None, :] // 8
            nibbles = (tl.load(words_ptr + places, mask=mask, other=0) >> shifts[None, :]) & 15
        else:
            places = (inputs[:, None] // 8).to(tl.int64) * out_features + columns[None, :]
            nibbles = (tl.load(words_ptr + places, mask=mask, other=0) >> (4 * (inputs[:, None] % 8))) & 15
        zero_words = tl.load(zeros_ptr + group * words_per_row + columns // 8, mask=is_column, other=0)
        zeros = (zero_words >> shifts) & 15
        if not IS_AWQ:
            zeros += 1
        scales = tl.load(scales_ptr + group * out_features + columns, mask=is_column, other=0.0)
        weight = (nibbles - zeros[None, :]).to(tl.float32) * scales[None, :].to(tl.float32)
        summed += tl.dot(x, weight.to(x.dtype), input_precision="ieee")
    places = rows[:, None].to(tl.int64) * stride_out_token + columns[None, :]
    tl.store(out_ptr + places, summed.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def scaled_linear(x: torch.Tensor, packed: ScaledWeight) -> torch.Tensor:
    """Return `x @ (weight * scale).T`, `[num_tokens, out_features]`, for x `[num_tokens, in_features]`."""
    (num_tokens, in_features), out_features = x.shape, packed.weight.shape[0]
    out = x.new_empty((num_tokens, out_features))
    if out.numel() == 0:
        return out
    launch = plan_product(num_tokens, packed.group_size)
    scaled_linear_kernel[launch.grid(num_tokens, out_features)](
        x,
        packed.weight,
        packed.scale,
        out,
        num_tokens,
        out_features,
        in_features,
        x.stride(0),
        packed.weight.stride(0),
        out.stride(0),
        GROUP_SIZE=packed.group_size or 0,
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        INPUTS=launch.inputs,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out


def int4_linear(x: torch.Tensor, packed: PackedInt4) -> torch.Tensor:
    """Return x `[num_tokens, in_features]` times the weight: `[num_tokens, out_features]`."""
    num_tokens, (in_features, out_features) = x.shape[0], packed.shape
    out = x.new_empty((num_tokens, out_features))
    if out.numel() == 0:
        return out
    launch = plan_product(num_tokens, packed.group_size)
    int4_linear_kernel[launch.grid(num_tokens, out_features)](
        x,
        packed.words,
        packed.zeros,
        packed.scales,
        out,
        num_tokens,
        out_features,
        in_features,
        x.stride(0),
        out.stride(0),
        GROUP_SIZE=packed.group_size,
        IS_AWQ=packed.layout == "awq",
        ROWS=launch.rows,
        COLUMNS=launch.columns,
        INPUTS=launch.inputs,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out
