"""QK-norm, rotation and the write to the paged cache in one pass over the QKV product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tidemill_kernels.rope_kv_write import NARROW_MOST, QkvLayout, Rotation


@triton.jit
def rope_kv_write_kernel(
    qkv_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    positions_ptr,
    slot_mapping_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    key_scales_ptr,
    value_scales_ptr,
    stride_qkv_token,
    stride_query_token,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
    NARROW_MOST: tl.constexpr,
    IS_INT8: tl.constexpr,
):
    """One head of one token per program: first the queries' heads, then the keys', then the values'.

    The caches are `[num_slots, NUM_KV_HEADS, HEAD_DIM]`; a negative slot is padding and is not written. With
    NARROW_MOST each head of each slot has a scale `[num_slots, NUM_KV_HEADS]`, by which its largest is that.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = HEAD_DIM // 2
    lanes = tl.arange(0, HALF_BLOCK)
    inside = lanes < half
    start = qkv_ptr + token * stride_qkv_token + head * HEAD_DIM
    first = tl.load(start + lanes, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(start + half + lanes, mask=inside, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KV_HEADS:
        if HAS_NORM:
            norm_ptr = q_norm_ptr if head < NUM_HEADS else k_norm_ptr
            first, second = _normalised(first, second, norm_ptr, eps, lanes, inside, HEAD_DIM)
        angle = tl.load(positions_ptr + token).to(tl.int64) * half + lanes
        first, second = _rotated(first, second, cos_ptr + angle, sin_ptr + angle, inside)
    if head < NUM_HEADS:
        goal = query_ptr + token * stride_query_token + head * HEAD_DIM
        _store_head(goal, first, second, lanes, inside, half)
    else:
        slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
        is_key = head < NUM_HEADS + NUM_KV_HEADS
        kv_head = head - NUM_HEADS - tl.where(is_key, 0, NUM_KV_HEADS)
        cache_ptr = key_cache_ptr if is_key else value_cache_ptr
        if NARROW_MOST > 0:
            scale = _scale_of(first, second, NARROW_MOST)
            scales_ptr = key_scales_ptr if is_key else value_scales_ptr
            if slot >= 0:
                tl.store(scales_ptr + slot * NUM_KV_HEADS + kv_head, scale)
            # Rounding may carry the largest just beyond the most.
            first = tl.minimum(tl.maximum(first / scale, -NARROW_MOST), NARROW_MOST)
            second = tl.minimum(tl.maximum(second / scale, -NARROW_MOST), NARROW_MOST)
        if IS_INT8:
            first = tl.floor(first + 0.5)
            second = tl.floor(second + 0.5)
        place = cache_ptr + (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM
        if slot >= 0:
            _store_head(place, first, second, lanes, inside, half)


@triton.jit
def _normalised(first, second, norm_ptr, eps, lanes, inside, HEAD_DIM: tl.constexpr):
    """Return both halves of a head divided by their root mean square and weighed."""
    mean_square = (tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / HEAD_DIM
    scale = tl.rsqrt(mean_square + eps)
    first *= scale * tl.load(norm_ptr + lanes, mask=inside, other=0.0).to(tl.float32)
    second *= scale * tl.load(norm_ptr + HEAD_DIM // 2 + lanes, mask=inside, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _rotated(first, second, cos_ptr, sin_ptr, inside):
    """Return both halves of a head turned by the angles of its position."""
    cos = tl.load(cos_ptr, mask=inside, other=1.0)
    sin = tl.load(sin_ptr, mask=inside, other=0.0)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _scale_of(first, second, NARROW_MOST: tl.constexpr):
    """Return the number by which a head's largest becomes NARROW_MOST."""
    largest = tl.maximum(tl.max(tl.abs(first), axis=0), tl.max(tl.abs(second), axis=0))
    # The least normal number: heads of zeros stay zeros.
    return tl.maximum(largest / NARROW_MOST, 1.1754943508222875e-38)


@triton.jit
def _store_head(goal, first, second, lanes, inside, HALF: tl.constexpr):
    """Write both halves of a head, in the dtype of what is written to."""
    tl.store(goal + lanes, first.to(goal.dtype.element_ty), mask=inside)
    tl.store(goal + HALF + lanes, second.to(goal.dtype.element_ty), mask=inside)


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    layout: QkvLayout,
    rotation: Rotation,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return rotated queries `[num_tokens, num_heads, head_dim]` and write keys and values to the cache.

    qkv: `[num_tokens, layout.width]`; positions, slot_mapping: `[num_tokens]` int64, a negative slot for
    padding; caches: keys and values, each `[num_blocks, block_size, num_kv_heads, head_dim]`, contiguous, in
    the model's dtype, or in float8_e4m3fn or int8 as value / scale; then scales: of keys and of values, each
    `[num_blocks, block_size, num_kv_heads]` float32, contiguous, are written beside them.
    """
    num_tokens, kind = qkv.shape[0], caches[0].dtype
    _check(qkv, layout, kind, has_scales=scales is not None)
    query = qkv.new_empty((num_tokens, layout.num_heads, layout.head_dim))
    if num_tokens == 0:
        return query
    has_norm = rotation.q_norm is not None
    norms = (rotation.q_norm, rotation.k_norm) if has_norm else (qkv, qkv)
    grid = (num_tokens, layout.num_heads + 2 * layout.num_kv_heads)
    rope_kv_write_kernel[grid](
        qkv,
        query,
        *caches,
        positions,
        slot_mapping,
        rotation.cos,
        rotation.sin,
        *norms,
        *(scales or (qkv, qkv)),
        qkv.stride(0),
        query.stride(0),
        rotation.eps,
        NUM_HEADS=layout.num_heads,
        NUM_KV_HEADS=layout.num_kv_heads,
        HEAD_DIM=layout.head_dim,
        HALF_BLOCK=triton.next_power_of_2(layout.head_dim // 2),
        HAS_NORM=has_norm,
        NARROW_MOST=NARROW_MOST.get(kind, 0.0),
        IS_INT8=kind == torch.int8,
        num_warps=1,
    )
    return query


def _check(qkv: torch.Tensor, layout: QkvLayout, kind: torch.dtype, *, has_scales: bool) -> None:
    """Raise ValueError where scales or columns are not those of the cache and the layout."""
    if (kind in NARROW_MOST) != has_scales:
        raise ValueError(f"a cache of {kind} {'has no' if has_scales else 'needs'} scales")
    if qkv.shape[1] != layout.width:
        raise ValueError(f"a row of the QKV product has {layout.width} columns, not {qkv.shape[1]}")
