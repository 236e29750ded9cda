"""A block table per row: which blocks hold a row's tokens, in order.

Knows rows, tokens and blocks. Does not know requests, priorities or when it is safe to give a row back: the
scheduler says so once no step in flight can touch it.
"""

from __future__ import annotations

import numpy as np

from tidemill_engine.kv.pool import BlockPool
from tidemill_engine.step import BlockAppends, IntArray, int_array


class KVCacheManager:
    """Block tables: `block_table [num_rows, max_blocks_per_row]`, of which `num_held [num_rows]` count."""

    def __init__(self, *, num_blocks: int, block_size: int, num_rows: int, max_tokens_per_row: int) -> None:
        self.block_size = block_size
        self.max_blocks_per_row = min(num_blocks, self.num_blocks_for(max_tokens_per_row))
        self.block_table = np.zeros((num_rows, self.max_blocks_per_row), dtype=np.int32)
        self.num_held = np.zeros(num_rows, dtype=np.int32)
        self._pool = BlockPool(num_blocks)

    @property
    def num_blocks(self) -> int:
        """Return the size of the pool."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Return how many blocks can be appended to rows now."""
        return self._pool.num_free

    @property
    def num_held_blocks(self) -> int:
        """Return how many blocks are in use."""
        return self._pool.num_held

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks that many tokens fill."""
        return -(-num_tokens // self.block_size)

    def num_missing(self, rows: IntArray, num_tokens: IntArray) -> IntArray:
        """Return how many blocks each row lacks to hold that many tokens: `[num_rows]`."""
        wanted = (num_tokens + (self.block_size - 1)) // self.block_size
        return int_array(np.maximum(wanted - self.num_held[rows], 0))

    def room_for(self, row: int) -> int:
        """Return how many tokens the row could hold with every free block."""
        num_blocks = min(int(self.num_held[row]) + self.num_free_blocks, self.max_blocks_per_row)
        return num_blocks * self.block_size

    def append(self, rows: IntArray, num_tokens: IntArray) -> BlockAppends | None:
        """Make every row hold that many tokens, say what was appended; None, and nothing done, if short."""
        missing = self.num_missing(rows, num_tokens)
        total = int(missing.sum())
        block_ids = self._pool.allocate(total)
        if block_ids is None:
            return None
        if total == 0:
            return BlockAppends()
        owners = np.repeat(rows, missing)
        first = np.repeat(np.cumsum(missing) - missing, missing)
        positions = int_array(self.num_held[owners] + np.arange(total) - first)
        self.block_table[owners, positions] = block_ids
        self.num_held[rows] += missing
        return BlockAppends(rows=owners, positions=positions, block_ids=block_ids)

    def release(self, row: int) -> int:
        """Give back all blocks of a row, its tail to be reused first, and return how many."""
        count = int(self.num_held[row])
        if count:
            self._pool.release(self.block_table[row, :count])
            self.num_held[row] = 0
        return count

    def check_integrity(self) -> None:
        """Raise unless every block is free or in exactly as many tables as it has holders."""
        counted = np.arange(self.max_blocks_per_row)[None, :] < self.num_held[:, None]
        self._pool.check_integrity(self.block_table[counted])
