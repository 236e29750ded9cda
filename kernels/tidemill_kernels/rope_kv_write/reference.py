"""The oracle: norm, rotation and writes one after another, in float32."""

from __future__ import annotations

import torch

from tidemill_kernels.rope_kv_write import NARROW_MOST, QkvLayout, Rotation


def rope_kv_write_reference(  # noqa: PLR0913, PLR0917 - the kernel's own
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    layout: QkvLayout,
    rotation: Rotation,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return rotated queries `[num_tokens, num_heads, head_dim]`; arguments as for the kernel."""
    heads = qkv.view(qkv.shape[0], -1, layout.head_dim).float()
    query, new = heads[:, : layout.num_heads], heads[:, layout.num_heads :]
    key, value = new.chunk(2, dim=1)
    query = _rotated(_normed(query, rotation.q_norm, rotation.eps), positions, rotation)
    key = _rotated(_normed(key, rotation.k_norm, rotation.eps), positions, rotation)
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    for index, (cache, new) in enumerate(zip(caches, (key[written], value[written]), strict=True)):
        if scales is not None:
            scale = (new.abs().amax(-1) / NARROW_MOST[cache.dtype]).clamp(min=torch.finfo(torch.float32).tiny)
            scales[index].view(-1, layout.num_kv_heads)[slots] = scale
            new = new / scale[..., None]  # noqa: PLW2901
        new = new.round() if cache.dtype == torch.int8 else new  # noqa: PLW2901
        cache.view(-1, *cache.shape[2:])[slots] = new.to(cache.dtype)
    return query.to(qkv.dtype)


def _normed(heads: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight is None:
        return heads
    return heads * torch.rsqrt(heads.pow(2).mean(dim=-1, keepdim=True) + eps) * weight.float()


def _rotated(heads: torch.Tensor, positions: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    cos, sin = rotation.cos[positions][:, None, :], rotation.sin[positions][:, None, :]
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
