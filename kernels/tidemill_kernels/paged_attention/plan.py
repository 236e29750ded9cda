"""What every layer of a step needs to find its keys and values: indices and masks, built once per step.

Knows block tables and lengths; does not touch keys or values. Sequences that decode are batched in groups
of similar length, so that padding at most doubles the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MIN_SHARE_OF_LONGEST = 0.5


@dataclass(frozen=True, kw_only=True)
class DecodeGroup:
    """Sequences with one new token each, padded to one length.

    tokens: `[n]` int64, places in the flat batch; gather: `[n * num_kv_heads * length]` int64, rows of the
    cache seen as `[num_slots * num_kv_heads, head_dim]`, sequence by sequence, head by head; bias: `[n *
    num_kv_heads, 1, length]`, 0 or -inf, in the dtype of the query.
    """

    tokens: torch.Tensor
    gather: torch.Tensor
    bias: torch.Tensor
    length: int


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Tokens `start .. end` of the flat batch, the newest of a sequence of `length` tokens.

    gather: `[num_kv_heads * length]` int64 as in `DecodeGroup`; mask: `[end - start, length]` bool, True =
    visible, or None where the chunk is the whole sequence and plain causality holds.
    """

    start: int
    end: int
    gather: torch.Tensor
    mask: torch.Tensor | None
    length: int


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """All tokens of one step: those that decode in groups, the others chunk by chunk."""

    decode_groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The shape of one layer's cache, and the dtype of queries."""

    block_size: int
    num_kv_heads: int
    dtype: torch.dtype


def make_plan(
    block_table: torch.Tensor,
    seq_lens: list[int],
    query_start_loc: list[int],
    num_decodes: int,
    layout: CacheLayout,
) -> AttentionPlan:
    """Lay out one step.

    block_table: `[num_seqs, max_blocks]` int64; seq_lens: `[num_seqs]`, this step's tokens included;
    query_start_loc: `[num_seqs + 1]` into the flat batch; the first `num_decodes` sequences have one token
    each.
    """
    groups = [
        _decode_group(block_table, seq_lens, members, layout)
        for members in _by_length(seq_lens[:num_decodes])
    ]
    chunks = [
        _chunk(
            block_table[index], seq_lens[index], (query_start_loc[index], query_start_loc[index + 1]), layout
        )
        for index in range(num_decodes, len(seq_lens))
    ]
    return AttentionPlan(decode_groups=tuple(groups), chunks=tuple(chunks))


def _by_length(lengths: list[int]) -> list[list[int]]:
    """Split sequences into groups whose shortest is at least half as long as their longest."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not groups or lengths[index] < _MIN_SHARE_OF_LONGEST * longest:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return [sorted(group) for group in groups]


def _decode_group(
    block_table: torch.Tensor, seq_lens: list[int], members: list[int], layout: CacheLayout
) -> DecodeGroup:
    """Lay out sequences that decode together."""
    lengths = torch.tensor([seq_lens[index] for index in members])
    longest = int(lengths.max())
    positions = torch.arange(longest)
    slots = _slots(block_table[members], positions, layout.block_size)
    is_hidden = positions >= lengths[:, None]
    bias = torch.zeros(is_hidden.shape, dtype=layout.dtype).masked_fill_(is_hidden, float("-inf"))
    return DecodeGroup(
        tokens=torch.tensor(members),
        gather=_per_head(slots.masked_fill_(is_hidden, 0), layout.num_kv_heads),
        bias=bias.repeat_interleave(layout.num_kv_heads, dim=0).unsqueeze(1),
        length=longest,
    )


def _chunk(block_table: torch.Tensor, length: int, span: tuple[int, int], layout: CacheLayout) -> Chunk:
    """Lay out the newest tokens of one sequence."""
    start, end = span
    count = end - start
    positions = torch.arange(length)
    slots = _slots(block_table[None], positions, layout.block_size)
    mask = None
    if count < length:
        mask = positions <= torch.arange(length - count, length)[:, None]
    return Chunk(start=start, end=end, gather=_per_head(slots, layout.num_kv_heads), mask=mask, length=length)


def _slots(block_table: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Return the slot of each position of each sequence: `[num_seqs, num_positions]`."""
    return block_table[:, positions // block_size] * block_size + positions % block_size


def _per_head(slots: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Return rows of the cache seen as `[num_slots * num_kv_heads, head_dim]`, head by head, flat."""
    heads = torch.arange(num_kv_heads)
    return (slots[:, None, :] * num_kv_heads + heads[None, :, None]).reshape(-1)
