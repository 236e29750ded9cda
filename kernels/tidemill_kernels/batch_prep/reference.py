"""The oracle: row by row, token by token."""

from __future__ import annotations

import torch


def prepare_batch_reference(
    rows: torch.Tensor,
    start_pos: torch.Tensor,
    num_scheduled: torch.Tensor,
    token_pool: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return input_ids, positions and slot_mapping, each `[num_tokens]` int64."""
    ids, positions, slots = [], [], []
    for row, start, count in zip(rows.tolist(), start_pos.tolist(), num_scheduled.tolist(), strict=True):
        for position in range(start, start + count):
            ids.append(int(token_pool[row, position]))
            positions.append(position)
            block = int(block_table[row, position // block_size])
            slots.append(block * block_size + position % block_size)
    return torch.tensor(ids), torch.tensor(positions), torch.tensor(slots)
