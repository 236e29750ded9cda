"""The oracle: token by token, head by head, in float32, straight from the block table."""

from __future__ import annotations

import math

import torch


def paged_attention_reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: list[int],
    query_start_loc: list[int],
) -> torch.Tensor:
    """Return `[num_tokens, num_heads, head_dim]`; arguments as for `paged_attention` and `make_plan`."""
    num_kv_heads, block_size = key_cache.shape[2], key_cache.shape[1]
    repeats = query.shape[1] // num_kv_heads
    out = torch.empty_like(query)
    for sequence, length in enumerate(seq_lens):
        start, end = query_start_loc[sequence], query_start_loc[sequence + 1]
        for token in range(start, end):
            visible = length - (end - token) + 1
            slots = [(int(block_table[sequence, p // block_size]), p % block_size) for p in range(visible)]
            for head in range(query.shape[1]):
                keys = torch.stack([key_cache[block, offset, head // repeats] for block, offset in slots])
                values = torch.stack([value_cache[block, offset, head // repeats] for block, offset in slots])
                scores = keys.float() @ query[token, head].float() / math.sqrt(query.shape[2])
                out[token, head] = (torch.softmax(scores, dim=0) @ values.float()).to(query.dtype)
    return out
