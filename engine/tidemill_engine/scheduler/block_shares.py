"""How much of the KV cache a tenant's running requests hold, and by how much another one would be too many.

Knows tenants' rows and the blocks in their tables, shared ones once. Does not know the order, nor what an
output is going to add: what counts is what is held and what admitted prompts still need. So a tenant may grow
beyond its share while blocks are free, and pays first when they are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.step import int_array

if TYPE_CHECKING:
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.scheduler.rows import RowTable
    from tidemill_engine.scheduler.waiting import WaitingQueue


class BlockShares:
    """Compares what a tenant has with its share of the `most_blocks` up to which anyone is admitted."""

    def __init__(self, rows: RowTable, kv: KVCacheManager, queue: WaitingQueue, most_blocks: int) -> None:
        self._rows = rows
        self._kv = kv
        self._queue = queue
        self._most_blocks = most_blocks

    def excess(self, tenant_index: int, num_blocks: int, committed: int) -> int:
        """Return by how many blocks a tenant would exceed its share with so many more; 0 if it would not.

        `committed` are those of all tenants together: where these are few, nobody is looked at.
        """
        most = self._queue.max_held_blocks(tenant_index, self._most_blocks)
        if most == self._most_blocks or committed + num_blocks <= most:
            return 0
        return max(0, self.num_committed(tenant_index) + num_blocks - most)

    def is_over(self, tenant_index: int) -> bool:
        """Say whether a tenant's running requests hold more than its share; a single one may."""
        is_single = self._queue.tenants.num_running(tenant_index) < 2
        return not is_single and self.excess(tenant_index, 0, self._kv.num_held_blocks) > 0

    def num_committed(self, tenant_index: int) -> int:
        """Return the blocks that a tenant's running requests hold, or that their prompts still need."""
        table, kv = self._rows, self._kv
        rows = int_array(np.flatnonzero(table.is_running & (table.tenant_index == tenant_index)))
        missing = int(kv.num_missing(rows, table.num_tokens[rows] + 1).sum())
        num_listed = int(kv.num_held[rows].sum())
        is_any_shared = int(kv.num_held.sum()) > kv.num_held_blocks
        return missing + (kv.num_distinct_blocks(rows) if is_any_shared else num_listed)
