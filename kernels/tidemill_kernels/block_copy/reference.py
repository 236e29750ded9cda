"""The oracle: an indexed copy."""

from __future__ import annotations

import torch


def copy_blocks_reference(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy `target[to] = source[from]` for each pair `[n, 2]`."""
    moved = source[pairs[:, 0].to(source.device)]
    target[pairs[:, 1].to(target.device)] = moved.to(target.device)
