"""The oracle: norm, rotation and writes one after another, in float32."""

from __future__ import annotations

import torch

from tidemill_kernels.rope_kv_write import QkvLayout, Rotation


def rope_kv_write_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    layout: QkvLayout,
    rotation: Rotation,
) -> torch.Tensor:
    """Return rotated queries `[num_tokens, num_heads, head_dim]`; arguments as for the kernel, scales 1."""
    heads = qkv.view(qkv.shape[0], -1, layout.head_dim).float()
    query, new = heads[:, : layout.num_heads], heads[:, layout.num_heads :]
    key, value = new.chunk(2, dim=1)
    query = _rotated(_normed(query, rotation.q_norm, rotation.eps), positions, rotation)
    key = _rotated(_normed(key, rotation.k_norm, rotation.eps), positions, rotation)
    written = slot_mapping >= 0
    for cache, new in zip(caches, (key, value), strict=True):
        cache.view(-1, *cache.shape[2:])[slot_mapping[written]] = new[written].to(cache.dtype)
    return query.to(qkv.dtype)


def _normed(heads: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight is None:
        return heads
    return heads * torch.rsqrt(heads.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.float()


def _rotated(heads: torch.Tensor, positions: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    cos, sin = rotation.cos[positions][:, None, :], rotation.sin[positions][:, None, :]
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
