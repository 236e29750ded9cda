"""What a device keeps of each row between steps: its tokens, its blocks and how its tokens are chosen.

Only additions cross from the host; sampled tokens never do, they are written where they were made. Knows
tensors and rows, not models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.runner.randomness import row_seed
from tidemill_engine.runner.sampler import GREEDY_BELOW_TEMPERATURE

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidemill_engine.step import BlockAppends, IntArray, NewRow

_FLOATS = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """How rows choose their tokens; all `[num_rows]` on the device: float32, int32, the seed int64."""

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    top_k: torch.Tensor
    seed: torch.Tensor


class DeviceRows:
    """All rows, and one more for padding, whose blocks are `padding_block` and whose tokens are 0."""

    def __init__(
        self, *, num_rows: int, max_tokens: int, block_size: int, padding_block: int, device: torch.device
    ) -> None:
        self.padding_row = num_rows
        self.block_size = block_size
        count = num_rows + 1
        self.token_pool = torch.zeros((count, max_tokens), dtype=torch.int32, device=device)
        max_blocks = -(-max_tokens // block_size)
        self.block_table = torch.zeros((count, max_blocks), dtype=torch.int32, device=device)
        self.block_table[num_rows] = padding_block
        floats = {name: torch.zeros(count, dtype=torch.float32, device=device) for name in _FLOATS}
        self.columns = RowColumns(
            **floats,
            top_k=torch.zeros(count, dtype=torch.int32, device=device),
            seed=torch.zeros(count, dtype=torch.int64, device=device),
        )

    @staticmethod
    def num_bytes(num_rows: int, max_tokens: int, block_size: int) -> int:
        """Return about how much of the device's memory so many rows take."""
        return 4 * (num_rows + 1) * (max_tokens + -(-max_tokens // block_size))

    @property
    def max_tokens(self) -> int:
        """Return how many tokens a row holds."""
        return self.token_pool.shape[1]

    def arrays(self, new_rows: Sequence[NewRow], appends: BlockAppends) -> list[npt.NDArray[np.generic]]:
        """Return what `apply` needs on the device."""
        blocks = [appends.rows, appends.positions, appends.block_ids]
        if not new_rows:
            return list(blocks)
        params = [new_row.sampling for new_row in new_rows]
        floats = np.array(
            [
                [0.0 if p.temperature < GREEDY_BELOW_TEMPERATURE else p.temperature for p in params],
                [p.top_p for p in params],
                [p.min_p for p in params],
                [p.repetition_penalty for p in params],
                [p.presence_penalty for p in params],
                [p.frequency_penalty for p in params],
            ],
            dtype=np.float32,
        )
        seeds = np.array([row_seed(new_row.seed, new_row.sibling) for new_row in new_rows], dtype=np.int64)
        return [
            *blocks,
            np.array([new_row.row for new_row in new_rows], dtype=np.int32),
            floats,
            np.array([p.top_k for p in params], dtype=np.int32),
            seeds,
            np.concatenate([new_row.token_ids for new_row in new_rows]),
        ]

    def apply(self, new_rows: Sequence[NewRow], there: Sequence[torch.Tensor]) -> None:
        """Take in new rows and appended blocks; `there` is what `arrays` gave, on the device."""
        rows, positions, block_ids, *rest = there
        if len(rows):
            self.block_table.index_put_((rows.long(), positions.long()), block_ids)
        if not rest:
            return
        started, floats, top_k, seeds, tokens = rest
        started = started.long()
        for name, values in zip(_FLOATS, floats.view(torch.float32).view(len(_FLOATS), -1), strict=True):
            getattr(self.columns, name).index_copy_(0, started, values)
        self.columns.top_k.index_copy_(0, started, top_k)
        self.columns.seed.index_copy_(0, started, seeds.view(torch.int64))
        done = 0
        for new_row in new_rows:
            count = len(new_row.token_ids)
            self.token_pool[new_row.row, :count] = tokens[done : done + count]
            done += count

    def append(self, rows: torch.Tensor, places: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Put chosen tokens `[n]` at places of rows; -1, for a row without numbers, becomes 0."""
        self.token_pool.index_put_((rows.long(), places.long()), token_ids.clamp(min=0).int())


def append_places(rows: IntArray, lengths: IntArray, tables: DeviceRows) -> tuple[IntArray, IntArray]:
    """Return where each row's next token goes: after its tokens; of a full row, to the padding row."""
    fits = lengths < tables.max_tokens
    return (
        np.where(fits, rows, tables.padding_row).astype(np.int32),
        np.where(fits, lengths, 0).astype(np.int32),
    )
