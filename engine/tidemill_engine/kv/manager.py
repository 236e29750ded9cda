"""A block table per row: which blocks hold a row's tokens, in order, and with whom they are shared.

Knows rows, tokens, blocks and digests. Does not know requests, priorities or when it is safe to give a row
back: the scheduler says so once no step in flight can touch it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from tidemill_engine.kv.compaction import find_run, fragmentation_ratio, is_contiguous
from tidemill_engine.kv.errors import IntegrityError
from tidemill_engine.kv.pool import BlockPool
from tidemill_engine.kv.prefix import PrefixRoots
from tidemill_engine.kv.swap import SwapSpace
from tidemill_engine.step import BlockAppends, IntArray, int_array


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """Blocks put into tables and the copies, pairs (from, to) `[n, 2]`, that fill them."""

    appends: BlockAppends
    copies: IntArray


class KVCacheManager:
    """Block tables: `block_table [num_rows, max_blocks_per_row]`, of which `num_held [num_rows]` count."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_rows: int,
        max_tokens_per_row: int,
        num_swap_blocks: int = 0,
        roots: PrefixRoots | None = None,
    ) -> None:
        """Make empty tables; without `roots` no block is shared or found again."""
        self.block_size = block_size
        self.roots = roots
        self.max_blocks_per_row = min(num_blocks, self.num_blocks_for(max_tokens_per_row))
        self.block_table = np.zeros((num_rows, self.max_blocks_per_row), dtype=np.int32)
        self.num_held = np.zeros(num_rows, dtype=np.int32)
        self.swap = SwapSpace(num_swap_blocks)
        self._pool = BlockPool(num_blocks)
        self._moved: deque[IntArray] = deque()

    @property
    def num_blocks(self) -> int:
        """Return the size of the pool."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Return how many blocks can be appended to rows now, those with only a cached prefix included."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Return how many free blocks hold a known prefix."""
        return self._pool.num_cached

    @property
    def num_held_blocks(self) -> int:
        """Return how many blocks are in use."""
        return self._pool.num_held

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks that many tokens fill."""
        return -(-num_tokens // self.block_size)

    def num_distinct_blocks(self, rows: IntArray) -> int:
        """Return how many blocks these rows hold, those that several hold counted once."""
        held = self.num_held[rows]
        width = int(held.max(initial=0))
        is_counted = np.arange(width)[None, :] < held[:, None]
        is_seen = np.zeros(self.num_blocks, dtype=np.bool_)
        is_seen[self.block_table[rows, :width][is_counted]] = True
        return int(np.count_nonzero(is_seen))

    def num_freed_in_turn(self, rows: IntArray, kept: IntArray | None = None) -> IntArray:
        """Return how many blocks nobody holds any more once each of these rows and those before it have gone.

        A block that another row holds too is not freed, nor is any of `kept`, which somebody will hold then.
        """
        held = self.num_held[rows]
        width = int(held.max(initial=0))
        listed = np.arange(width)[None, :] < held[:, None]
        turns, positions = np.nonzero(listed)
        block_ids = self.block_table[rows[turns], positions]
        num_leaving = np.bincount(block_ids, minlength=self.num_blocks)
        if kept is not None:
            num_leaving[kept] = 0
        last_turn = np.zeros(self.num_blocks, dtype=np.int64)
        np.maximum.at(last_turn, block_ids, turns)
        freed = np.flatnonzero((num_leaving > 0) & (num_leaving == self._pool.num_holders()))
        return int_array(np.bincount(last_turn[freed], minlength=len(rows)).cumsum())

    def num_missing(self, rows: IntArray, num_tokens: IntArray) -> IntArray:
        """Return how many blocks each row lacks to hold that many tokens: `[num_rows]`."""
        wanted = (num_tokens + (self.block_size - 1)) // self.block_size
        missing: IntArray = np.maximum(wanted - self.num_held[rows], 0)
        return missing

    def room_for(self, row: int) -> int:
        """Return how many tokens the row could hold with every free block."""
        num_blocks = min(int(self.num_held[row]) + self.num_free_blocks, self.max_blocks_per_row)
        return num_blocks * self.block_size

    def append(self, rows: IntArray, num_tokens: IntArray) -> BlockAppends | None:
        """Make every row hold that many tokens, say what was appended; None, and nothing done, if short."""
        return self.append_missing(rows, self.num_missing(rows, num_tokens))

    def append_missing(self, rows: IntArray, missing: IntArray) -> BlockAppends | None:
        """Append so many blocks to each row and say which; None, and nothing done, if short."""
        short = np.flatnonzero(missing)
        if len(short) == 0:
            return BlockAppends()
        rows, missing = rows[short], missing[short]
        total = int(missing.sum())
        block_ids = self._pool.allocate(total)
        if block_ids is None:
            return None
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

    def find_prefix(self, chain: list[bytes]) -> IntArray:
        """Return the blocks that hold the longest known part of a chain of digests, from its start."""
        return int_array(self._pool.index.find(chain))

    def knows(self, digest: bytes) -> bool:
        """Say whether a block with this content can be found."""
        return self._pool.index.knows(digest)

    def num_revived(self, block_ids: IntArray) -> int:
        """Return how many of these found blocks are free until they are adopted."""
        return self._pool.num_idle(block_ids)

    def adopt(self, row: int, block_ids: IntArray) -> BlockAppends:
        """Begin an empty row's table with blocks that `find_prefix` found."""
        self._pool.revive(block_ids)
        return self._put(row, block_ids)

    def fork(self, parent: int, child: int, num_tokens: int) -> TableChange | None:
        """Begin an empty row's table with another row's first tokens; None, and nothing done, if short.

        Full blocks are shared; a partly filled last one is copied, as both rows will write into it.
        """
        num_full, num_rest = divmod(num_tokens, self.block_size)
        tail = self._pool.allocate(1 if num_rest else 0)
        if tail is None:
            return None
        shared = self.block_table[parent, :num_full]
        self._pool.share(shared)
        appends = self._put(child, np.concatenate([shared, tail]))
        source = self.block_table[parent, num_full : num_full + len(tail)]
        return TableChange(appends=appends, copies=np.stack([source, tail], axis=1))

    def publish(self, block_ids: list[int], digests: list[bytes]) -> None:
        """Make full, computed blocks of rows findable by their digests."""
        self._pool.index.publish(block_ids, digests)

    def forget(self, row: int) -> None:
        """Make a row's blocks unfindable, since what they hold can't be trusted."""
        self._pool.forget(self.block_table[row, : self.num_held[row]])

    def swap_out(self, row: int, num_tokens: int) -> TableChange | None:
        """Copy a row's first tokens to the CPU pool; None, and nothing done, if that is short.

        The copies' targets are blocks of that pool. The row keeps its blocks until it is released.
        """
        sources = self.block_table[row, : self.num_blocks_for(num_tokens)]
        targets = self.swap.take(len(sources))
        if targets is None:
            return None
        return TableChange(appends=BlockAppends(), copies=np.stack([sources, targets], axis=1))

    def swap_in(self, row: int, swapped: IntArray, found: IntArray) -> TableChange | None:
        """Begin an empty row's table with what was swapped out; None, and nothing done, if short.

        `found` are blocks that hold the first of it anyway; only the others are copied.
        """
        num_new = len(swapped) - len(found)
        if num_new > self.num_free_blocks - self.num_revived(found):
            return None
        self._pool.revive(found)
        fresh = self._pool.allocate(num_new)
        if fresh is None:
            raise IntegrityError("blocks that were counted as free are not")
        self.swap.leave(swapped)
        copies = np.stack([swapped[len(found) :], fresh], axis=1)
        return TableChange(appends=self._put(row, np.concatenate([found, fresh])), copies=copies)

    def compact(self, row: int) -> TableChange | None:
        """Make a row's blocks neighbours; None where they are, where some are shared, or no room is free.

        The old blocks stay held until `release_moved`: steps in flight may read them.
        """
        block_ids = self.block_table[row, : self.num_held[row]].copy()
        if is_contiguous(block_ids) or np.any(self._pool.num_holders(block_ids) > 1):
            return None
        first = find_run(self._pool.is_free(), len(block_ids))
        if first is None:
            return None
        targets = int_array(np.arange(first, first + len(block_ids)))
        self._pool.allocate_exactly(targets)
        for old, new in zip(block_ids.tolist(), targets.tolist(), strict=True):
            self._pool.index.move(old, new)
        self._moved.append(block_ids)
        self.num_held[row] = 0
        appends = self._put(row, targets)
        return TableChange(appends=appends, copies=np.stack([block_ids, targets], axis=1))

    def release_moved(self) -> None:
        """Give back what one row held before it was compacted, in the order of the compactions."""
        self._pool.release(self._moved.popleft())

    def fragmentation_ratio(self) -> float:
        """Return the share of neighbours in tables that are not neighbours in the pool: 0 is ideal."""
        return fragmentation_ratio(self.block_table, self.num_held)

    def check_integrity(self) -> None:
        """Raise unless every block is free or in exactly as many tables as it has holders."""
        counted = np.arange(self.max_blocks_per_row)[None, :] < self.num_held[:, None]
        self._pool.check_integrity(np.concatenate([self.block_table[counted], *self._moved]))
        self.swap.check_integrity()

    def _put(self, row: int, block_ids: IntArray) -> BlockAppends:
        """Append blocks to a row's table."""
        start = int(self.num_held[row])
        positions = int_array(np.arange(start, start + len(block_ids)))
        self.block_table[row, positions] = block_ids
        self.num_held[row] += len(block_ids)
        return BlockAppends(
            rows=np.full(len(block_ids), row, dtype=np.int32),
            positions=positions,
            block_ids=int_array(block_ids),
        )
