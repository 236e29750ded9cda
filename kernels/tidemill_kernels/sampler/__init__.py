"""Drawing one token per row from logits, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Drawing"]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How each row's token is drawn; all `[num_rows]`.

    temperature: float32, 0 = greedy; top_k: int32, 0 = all; top_p, min_p: float32; seed: int64; position:
    int32, of the output token. Chance is a function of seed and position alone.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
