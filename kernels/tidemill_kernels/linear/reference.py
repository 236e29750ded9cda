"""The oracle, in float32."""

from __future__ import annotations

import torch


def linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `x @ weight.T + bias`, rounded once to the dtype of x."""
    product = x.float() @ weight.float().T
    if bias is not None:
        product = product + bias.float()
    return product.to(x.dtype)
