"""Attention in plain torch for a CPU: gather a layer's keys and values, then batched matrix products.

Query heads that share a key/value head are folded into its rows, so nothing is repeated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tidemill_kernels.paged_attention.plan import Chunk, DecodeGroup


def attend_decodes(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, group: DecodeGroup
) -> torch.Tensor:
    """Return the outputs of one token per sequence: `[n, num_heads, head_dim]`."""
    n, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    shape = (n * num_kv_heads, group.length, head_dim)
    keys = _gathered(key_cache, group.gather).view(shape)
    values = _gathered(value_cache, group.gather).view(shape)
    folded = query.reshape(n * num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = torch.baddbmm(group.bias, folded, keys.transpose(1, 2), alpha=1 / math.sqrt(head_dim))
    return torch.bmm(torch.softmax(scores, dim=-1), values).view(n, num_heads, head_dim)


def attend_chunk(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, chunk: Chunk
) -> torch.Tensor:
    """Return the outputs of one sequence's newest tokens: `[num_tokens, num_heads, head_dim]`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    shape = (num_kv_heads, chunk.length, head_dim)
    repeats = num_heads // num_kv_heads
    keys = _gathered(key_cache, chunk.gather).view(shape).repeat_interleave(repeats, dim=0)
    values = _gathered(value_cache, chunk.gather).view(shape).repeat_interleave(repeats, dim=0)
    out = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None and num_tokens > 1,
    )
    return out.squeeze(0).transpose(0, 1)


def _gathered(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of one layer's cache: `[num_rows, head_dim]`."""
    return cache.view(-1, cache.shape[-1]).index_select(0, rows)
