"""Matrix products whose weights are held in 8 or 4 bits and whose activations are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["AWQ_ORDER", "PackedInt4", "ScaledWeight"]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ's word holds, from its lowest four bits on, these of eight neighbouring columns."""


@dataclass(frozen=True, kw_only=True)
class ScaledWeight:
    """An int8 or float8_e4m3fn weight `[out_features, in_features]`.

    scale: `[out_features]` float32; with a group_size, which tells how many inputs share one, `[groups,
    out_features]`.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    group_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class PackedInt4:
    """A weight of four bits, as checkpoints hold it.

    layout `awq`: words `[in_features, out_features / 8]` int32 in AWQ_ORDER, zeros `[groups, out_features /
    8]` likewise. layout `gptq`: words `[in_features / 8, out_features]` int32, lowest bits first, zeros
    `[groups, out_features / 8]`, lowest bits first, each zero stored less one. scales: `[groups,
    out_features]`. A number is `(nibble - zero) * scale`, its group `in_feature // group_size`.
    """

    words: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    group_size: int
    layout: Literal["awq", "gptq"]

    @property
    def shape(self) -> tuple[int, int]:
        """Return in_features and out_features."""
        rows, columns = self.words.shape
        return (rows, columns * 8) if self.layout == "awq" else (rows * 8, columns)
