"""Attention of this step's tokens over each sequence's paged keys and values, and writing the new ones."""

from __future__ import annotations

import torch

from tidemill_kernels.paged_attention.cpu import attend_span
from tidemill_kernels.paged_attention.plan import AttentionPlan, make_plan
from tidemill_kernels.paged_attention.reference import paged_attention_reference

__all__ = ["AttentionPlan", "make_plan", "paged_attention", "paged_attention_reference", "store_kv"]


def store_kv(cache: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write one layer's new keys (or values) into its cache.

    cache: `[num_blocks, block_size, num_kv_heads, head_dim]`, values: `[num_tokens, num_kv_heads, head_dim]`,
    slot_mapping: `[num_tokens]` int64, slot = block id * block size + offset.
    """
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, values)


def paged_attention(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, plan: AttentionPlan
) -> torch.Tensor:
    """Return softmax(q k / sqrt(head_dim)) v, causal: `[num_tokens, num_heads, head_dim]`.

    query: `[num_tokens, num_heads, head_dim]`; caches: `[num_blocks, block_size, num_kv_heads, head_dim]`,
    which already hold this step's tokens. The plan is the same for all layers of a step.
    """
    if query.shape[1] % key_cache.shape[2]:
        raise ValueError(f"{query.shape[1]} query heads over {key_cache.shape[2]} key/value heads")
    out = torch.empty_like(query)
    for span in plan.spans:
        tokens = slice(span.start, span.end)
        out[tokens] = attend_span(query[tokens], key_cache, value_cache, span)
    return out
