"""The oracle, in float32."""

from __future__ import annotations

import torch


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `gate * sigmoid(gate) * up` for gate_up `[num_tokens, 2 * size]`, rounded once."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
