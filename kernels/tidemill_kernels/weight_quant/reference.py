"""The oracle: weights written out in float32, then one plain product."""

from __future__ import annotations

import torch

from tidemill_kernels.weight_quant import AWQ_ORDER, PackedInt4, ScaledWeight


def scaled_linear_reference(x: torch.Tensor, packed: ScaledWeight) -> torch.Tensor:
    """Return `x @ (weight * scale).T`: `[num_tokens, out_features]`."""
    scales = packed.scale[:, None]
    if packed.group_size is not None:
        groups = torch.arange(packed.weight.shape[1], device=x.device) // packed.group_size
        scales = packed.scale[groups].T
    return (x.float() @ (packed.weight.float() * scales).T).to(x.dtype)


def int4_linear_reference(x: torch.Tensor, packed: PackedInt4) -> torch.Tensor:
    """Return x times the unpacked weight: `[num_tokens, out_features]`."""
    return (x.float() @ unpack(packed)).to(x.dtype)


def unpack(packed: PackedInt4) -> torch.Tensor:
    """Write a weight out: `[in_features, out_features]` float32."""
    if packed.layout == "awq":
        nibbles, zeros = _columns(packed.words, AWQ_ORDER), _columns(packed.zeros, AWQ_ORDER)
    else:
        plain = tuple(range(8))
        nibbles = _columns(packed.words.T.contiguous(), plain).T
        zeros = _columns(packed.zeros, plain) + 1
    groups = torch.arange(packed.shape[0], device=packed.words.device) // packed.group_size
    return (nibbles - zeros[groups]).float() * packed.scales[groups].float()


def _columns(words: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Unpack `[rows, n]` words into `[rows, 8 n]` numbers; order: the column of each four bits of a word."""
    nibbles = torch.stack([(words >> (4 * place)) & 15 for place in range(8)], dim=-1)
    unpacked = torch.empty_like(nibbles)
    unpacked[..., list(order)] = nibbles
    return unpacked.reshape(words.shape[0], -1)
