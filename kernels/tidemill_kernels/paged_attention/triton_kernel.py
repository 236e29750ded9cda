"""Paged attention on a GPU: one kernel for prefill, decode and everything between, and the merging of parts.

Softmax is computed online (Milakov and Gimelshein, arXiv 1805.02867; tiles as in FlashAttention-2, arXiv
2307.08691; split contexts as in Flash-Decoding). Exponentials are base 2, scores scaled by log2(e). Products
of float32 are those of float32 (ieee), not of its upper 19 bits, as Triton would have it by default.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tidemill_kernels.paged_attention.batch import AttentionOptions, PagedBatch
from tidemill_kernels.paged_attention.launch import AttentionLaunch, HeadShape

_LOG2_E = 1.4426950408889634


# Numbers that differ from step to step: no variant is compiled for what they happen to be.
@triton.jit(do_not_specialize=["stride_table", "num_tokens"])
def paged_attention_kernel(
    out_ptr,
    part_out_ptr,
    part_stats_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_scales_ptr,
    value_scales_ptr,
    block_table_ptr,
    seq_lens_ptr,
    query_start_ptr,
    tile_sequences_ptr,
    tile_starts_ptr,
    stride_query_token,
    stride_out_token,
    stride_cache_slot,
    stride_table,
    num_tokens,
    scale_log2,
    soft_cap,
    block_size,
    WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    IS_NARROW: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
):
    """Compute one tile of one key/value head over one part of its context.

    Row r of a tile is query head r % GROUP_PADDED of token r // GROUP_PADDED. With one part the result goes
    to `out`; with several, unnormalised sums go to `part_out` `[NUM_PARTS, num_tokens, NUM_HEADS, HEAD_DIM]`
    and their maxima and weights to `part_stats` `[2, NUM_PARTS, num_tokens, NUM_HEADS]`, all float32.
    """
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tile_sequences_ptr + tile)
    if sequence < 0:
        return
    tile_start = tl.load(tile_starts_ptr + tile)
    first_token = tl.load(query_start_ptr + sequence)
    num_new = tl.load(query_start_ptr + sequence + 1) - first_token
    seq_len = tl.load(seq_lens_ptr + sequence)

    rows = tl.arange(0, ROWS)
    offsets = tile_start + rows // GROUP_PADDED
    in_group = rows % GROUP_PADDED
    is_row = (offsets < num_new) & (in_group < GROUP)
    tokens = (first_token + offsets).to(tl.int64)
    heads = kv_head * GROUP + in_group
    dims = tl.arange(0, DIM_BLOCK)
    is_dim = dims < HEAD_DIM
    row_mask = is_row[:, None] & is_dim[None, :]
    query_places = tokens[:, None] * stride_query_token + heads[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(query_ptr + query_places, mask=row_mask, other=0.0)

    visible = seq_len - num_new + offsets + 1
    tile_tokens: tl.constexpr = ROWS // GROUP_PADDED
    begin, last = _keys_of_part(
        seq_len - num_new, seq_len, tile_start, part, WINDOW, tile_tokens, KEYS, NUM_PARTS
    )
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    summed = tl.zeros([ROWS, DIM_BLOCK], dtype=tl.float32)
    table = block_table_ptr + sequence.to(tl.int64) * stride_table
    for start in range(begin, last, KEYS):
        positions = start + tl.arange(0, KEYS)
        is_key = positions < last
        blocks = tl.load(table + positions // block_size, mask=is_key, other=0).to(tl.int64)
        places = blocks * block_size + positions % block_size
        slots = places * stride_cache_slot + kv_head * HEAD_DIM
        key_mask = is_dim[:, None] & is_key[None, :]
        keys = _load_cached(key_cache_ptr + slots[None, :] + dims[:, None], key_mask, query, IS_NARROW)
        scores = tl.dot(query, keys, input_precision="ieee") * scale_log2
        if IS_NARROW:
            # A cache of 2 ** 31 heads would hold more than any device.
            scale_places = places.to(tl.int32) * (NUM_HEADS // GROUP) + kv_head
            scores *= tl.load(key_scales_ptr + scale_places, mask=is_key, other=0.0)[None, :]
        if HAS_SOFT_CAP:
            scores = _soft_capped(scores, soft_cap)
        scores = _only_seen(scores, positions, is_key, visible, WINDOW)
        weights, shrink, largest, total = _softmax_step(scores, largest, total)
        value_places = value_cache_ptr + slots[:, None] + dims[None, :]
        values = _load_cached(value_places, tl.trans(key_mask), query, IS_NARROW)
        if IS_NARROW:
            weights *= tl.load(value_scales_ptr + scale_places, mask=is_key, other=0.0)[None, :]
        summed = summed * shrink[:, None] + tl.dot(weights.to(query.dtype), values, input_precision="ieee")

    if NUM_PARTS == 1:
        result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
        out_places = tokens[:, None] * stride_out_token + heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out_ptr + out_places, result.to(out_ptr.dtype.element_ty), mask=row_mask)
    else:
        part_places = (part.to(tl.int64) * num_tokens + tokens) * NUM_HEADS + heads
        tl.store(part_out_ptr + part_places[:, None] * HEAD_DIM + dims[None, :], summed, mask=row_mask)
        tl.store(part_stats_ptr + part_places, largest, mask=is_row)
        count = tl.full([], NUM_PARTS * NUM_HEADS, tl.int64) * num_tokens
        tl.store(part_stats_ptr + count + part_places, total, mask=is_row)


@triton.jit
def _keys_of_part(
    num_old,
    seq_len,
    tile_start,
    part,
    WINDOW: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
):
    """Return where one part of the context begins and ends that a tile of TOKENS tokens can see.

    What its rows can see are positions up to each row's own, back to the window's edge.
    """
    last = tl.minimum(num_old + tile_start + TOKENS, seq_len)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, num_old + tile_start + 1 - WINDOW)
    part_keys = tl.cdiv(tl.cdiv(last - begin, NUM_PARTS), KEYS) * KEYS
    begin = begin + part * part_keys
    return begin, tl.minimum(last, begin + part_keys)


@triton.jit
def _load_cached(places, mask, query, IS_NARROW: tl.constexpr):
    """Load keys or values in the query's dtype; narrow ones still without their scales."""
    cached = tl.load(places, mask=mask, other=0.0)
    if IS_NARROW:
        cached = cached.to(tl.float32).to(query.dtype)
    return cached


@triton.jit
def _soft_capped(scores, soft_cap):
    """Return `soft_cap * tanh(scores / soft_cap)`, by exponentials."""
    ratio = tl.exp2(-2.0 * tl.abs(scores) / soft_cap * 1.4426950408889634)
    capped = soft_cap * (1.0 - ratio) / (1.0 + ratio)
    return tl.where(scores < 0, -capped, capped)


@triton.jit
def _only_seen(scores, positions, is_key, visible, WINDOW: tl.constexpr):
    """Return scores with -inf where a row does not see a key; visible: `[ROWS]`, first position too far."""
    seen = is_key[None, :] & (positions[None, :] < visible[:, None])
    if WINDOW > 0:
        seen = seen & (positions[None, :] >= visible[:, None] - WINDOW)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _softmax_step(scores, largest, total):
    """Take some more keys into the online softmax.

    Returns their weights, what the sums so far shrink by, and each row's new maximum and total.
    """
    larger = tl.maximum(largest, tl.max(scores, axis=1))
    anchor = tl.where(larger == float("-inf"), 0.0, larger)
    weights = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(largest - anchor)
    return weights, shrink, larger, total * shrink + tl.sum(weights, axis=1)


@triton.jit(do_not_specialize=["num_tokens"])
def merge_parts_kernel(
    out_ptr,
    part_out_ptr,
    part_stats_ptr,
    stride_out_token,
    num_tokens,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
):
    """Merge the parts of one head of one token: weigh each by how its maximum compares to the largest."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    parts = tl.arange(0, PARTS_BLOCK)
    is_part = parts < NUM_PARTS
    dims = tl.arange(0, DIM_BLOCK)
    is_dim = dims < HEAD_DIM
    places = (parts.to(tl.int64) * num_tokens + token) * NUM_HEADS + head
    count = tl.full([], NUM_PARTS * NUM_HEADS, tl.int64) * num_tokens
    maxima = tl.load(part_stats_ptr + places, mask=is_part, other=float("-inf"))
    totals = tl.load(part_stats_ptr + count + places, mask=is_part, other=0.0)
    largest = tl.max(maxima, axis=0)
    weights = tl.exp2(maxima - tl.where(largest == float("-inf"), 0.0, largest))
    mask = is_part[:, None] & is_dim[None, :]
    summed = tl.load(part_out_ptr + places[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    total = tl.sum(totals * weights, axis=0)
    result = tl.sum(summed * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    place = out_ptr + token * stride_out_token + head * HEAD_DIM + dims
    tl.store(place, result.to(out_ptr.dtype.element_ty), mask=is_dim)


def paged_attention(
    query: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    batch: PagedBatch,
    launch: AttentionLaunch,
    options: AttentionOptions,
    out: torch.Tensor | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return causal attention of this step's tokens, `[num_tokens, num_heads, head_dim]`, in `out` if given.

    query: `[num_tokens, num_heads, head_dim]`; caches: keys and values, each `[num_blocks, block_size,
    num_kv_heads, head_dim]`, contiguous, this step's tokens included, in the dtype of the query,
    float8_e4m3fn or int8.
    """
    num_tokens, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = caches[0].shape
    out = torch.empty_like(query) if out is None else out
    num_tiles = batch.tile_sequences.shape[0]
    if num_tokens == 0 or num_tiles == 0:
        return out
    parts = _room_for_parts(query, launch.num_parts) or (out, out)
    heads = HeadShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    paged_attention_kernel[(num_tiles, num_kv_heads, launch.num_parts)](
        out,
        *parts,
        query,
        *caches,
        *(scales or (query, query)),
        batch.block_table,
        batch.seq_lens,
        batch.query_start_loc,
        batch.tile_sequences,
        batch.tile_starts,
        query.stride(0),
        out.stride(0),
        num_kv_heads * head_dim,
        batch.block_table.stride(0),
        num_tokens,
        options.scale * _LOG2_E,
        options.soft_cap * _LOG2_E,
        block_size,
        WINDOW=options.window,
        HAS_SOFT_CAP=options.soft_cap > 0,
        IS_NARROW=scales is not None,
        GROUP=heads.group,
        GROUP_PADDED=heads.padded_group,
        ROWS=launch.rows,
        KEYS=launch.keys,
        NUM_PARTS=launch.num_parts,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **_head_constants(query),
    )
    if launch.num_parts > 1:
        _merge(out, parts)
    return out


def _room_for_parts(query: torch.Tensor, num_parts: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return room for unnormalised sums and for their maxima and weights; None where one part needs none."""
    if num_parts == 1:
        return None
    num_tokens, num_heads, head_dim = query.shape
    sums = query.new_empty((num_parts, num_tokens, num_heads, head_dim), dtype=torch.float32)
    return sums, query.new_empty((2, num_parts, num_tokens, num_heads), dtype=torch.float32)


def _head_constants(query: torch.Tensor) -> dict[str, int]:
    """Return what both kernels are compiled for."""
    _, num_heads, head_dim = query.shape
    dim_block = max(16, triton.next_power_of_2(head_dim))
    return {"NUM_HEADS": num_heads, "HEAD_DIM": head_dim, "DIM_BLOCK": dim_block}


def _merge(out: torch.Tensor, parts: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Merge the parts of every head of every token into out `[num_tokens, num_heads, head_dim]`."""
    num_tokens, num_heads, _ = out.shape
    num_parts = parts[0].shape[0]
    merge_parts_kernel[(num_tokens, num_heads)](
        out,
        *parts,
        out.stride(0),
        num_tokens,
        NUM_PARTS=num_parts,
        PARTS_BLOCK=triton.next_power_of_2(num_parts),
        num_warps=1,
        **_head_constants(out),
    )
