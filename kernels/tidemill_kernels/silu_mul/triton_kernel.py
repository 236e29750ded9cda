"""The gate of a Llama MLP, one block of one row per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tidemill_kernels.silu_mul.launch import plan_gate


@triton.jit
def silu_mul_kernel(gate_up_ptr, out_ptr, stride_gate_row, stride_out_row, size, BLOCK: tl.constexpr):
    """Read a gate and the number beside it half a row on; write their gated product."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    start = gate_up_ptr + row * stride_gate_row
    gate = tl.load(start + columns, mask=inside, other=0.0)
    up = tl.load(start + size + columns, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    product = wide / (1.0 + tl.exp(-wide)) * up
    tl.store(out_ptr + row * stride_out_row + columns, product.to(gate.dtype), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`: `[num_tokens, size]` for gate_up `[num_tokens, 2 * size]`, gates first."""
    num_tokens, width = gate_up.shape
    out = gate_up.new_empty((num_tokens, width // 2))
    if out.numel() == 0:
        return out
    launch = plan_gate(num_tokens, width // 2)
    silu_mul_kernel[launch.grid](
        gate_up,
        out,
        gate_up.stride(0),
        out.stride(0),
        width // 2,
        BLOCK=launch.block,
        num_warps=launch.num_warps,
    )
    return out
