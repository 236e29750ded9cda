"""What a step and a model ask of attention on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What a model asks of attention.

    scale: of scores; window: how many of the newest tokens are seen, 0 = all; soft_cap: scores become
    `cap * tanh(score / cap)`, 0 = off.
    """

    scale: float
    window: int = 0
    soft_cap: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PagedBatch:
    """One step's sequences on the device.

    block_table: `[num_seqs, max_blocks]` int32; seq_lens: `[num_seqs]` int32, new tokens included;
    query_start_loc: `[num_seqs + 1]` int32; tile_sequences, tile_starts: `[num_tiles]` int32 as in
    `AttentionLaunch`, a negative sequence for padding.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    tile_sequences: torch.Tensor
    tile_starts: torch.Tensor
