"""The gate of a Llama MLP."""

from __future__ import annotations

import torch

from tidemill_kernels.silu_mul.reference import silu_mul_reference

__all__ = ["silu_mul", "silu_mul_reference"]


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`: `[num_tokens, size]` for gate_up `[num_tokens, 2 * size]`, gates first."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate and up need an even width, not {gate_up.shape[-1]}")
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)
