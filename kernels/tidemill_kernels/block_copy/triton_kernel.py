"""Copies of whole blocks, as 32-bit or 8-bit words whatever they hold."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS_PER_PROGRAM = 2048


@triton.jit
def copy_blocks_kernel(source_ptr, target_ptr, pairs_ptr, num_words, BLOCK: tl.constexpr):
    """One part of one block per program."""
    pair = tl.program_id(0)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = words < num_words
    origin = tl.load(pairs_ptr + 2 * pair).to(tl.int64) * num_words
    goal = tl.load(pairs_ptr + 2 * pair + 1).to(tl.int64) * num_words
    tl.store(target_ptr + goal + words, tl.load(source_ptr + origin + words, mask=inside), mask=inside)


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy `target[to] = source[from]` for each pair `[n, 2]` int64; the caches are contiguous."""
    if pairs.shape[0] == 0:
        return
    source_words, target_words = _as_words(source), _as_words(target)
    num_words = source_words.shape[1]
    grid = (pairs.shape[0], triton.cdiv(num_words, _WORDS_PER_PROGRAM))
    copy_blocks_kernel[grid](source_words, target_words, pairs, num_words, BLOCK=_WORDS_PER_PROGRAM)


def _as_words(cache: torch.Tensor) -> torch.Tensor:
    """View blocks as `[num_blocks, num_words]` of the widest integers that fit."""
    flat = cache.view(cache.shape[0], -1)
    num_bytes = flat.shape[1] * flat.element_size()
    return flat.view(torch.int32 if num_bytes % 4 == 0 else torch.uint8)
