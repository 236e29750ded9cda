"""Attention in plain torch for a CPU: each sequence by itself, over its keys and values where they lie.

What a decoding sequence sees is one call, over a view of the cache where its blocks are neighbours. A chunk
is two, its context and itself, joined by the logarithms of their sums of exponentials, which is exact
(FlashAttention, arXiv 2205.14135, 3.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tidemill_kernels.paged_attention.plan import Span, Stretch


def attend_span(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, span: Span
) -> torch.Tensor:
    """Return the outputs of one sequence's newest tokens: `[num_tokens, num_heads, head_dim]`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    # [num_kv_heads, query heads of each, num_tokens, head_dim]
    grouped = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim).permute(1, 2, 0, 3)
    if num_tokens == 1:  # a key head's queries are as many tokens that all see the same: keys are read once
        grouped = grouped.transpose(1, 2)
    out, lse = _attend(grouped, key_cache, value_cache, span.stretches[0])
    for stretch in span.stretches[1:]:
        out = out.float()
        _join(out, lse, *_attend(grouped, key_cache, value_cache, stretch))
        out = out.to(query.dtype)
    if num_tokens == 1:
        out = out.transpose(1, 2)
    return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)


def _attend(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, stretch: Stretch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs over one stretch, as `query`, and the log sums of exponentials, without head_dim.

    This is what `scaled_dot_product_attention` calls on a CPU; only the operator itself returns the sums.
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - as said
        query,
        _heads(key_cache, stretch, query.shape[1]),
        _heads(value_cache, stretch, query.shape[1]),
        is_causal=stretch.is_causal,
    )
    return out, lse


def _heads(cache: torch.Tensor, stretch: Stretch, num_repeats: int) -> torch.Tensor:
    """Return a stretch of one layer's cache, if possible a view: `[num_kv_heads, repeats, n, head_dim]`."""
    slots = cache.view(-1, *cache.shape[2:])
    where = stretch.slots
    rows = slots[where] if isinstance(where, slice) else slots.index_select(0, where)
    return rows.transpose(0, 1).unsqueeze(1).expand(-1, num_repeats, -1, -1)


def _join(out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor) -> None:
    """Join the softmax over another part of the context to what `out` (float32) and `lse` say; in place."""
    joined = torch.logaddexp(lse, part_lse)
    out.mul_((lse - joined).exp_().unsqueeze(-1))
    out.addcmul_(part.float(), (part_lse - joined).exp_().unsqueeze(-1))
    lse.copy_(joined)
