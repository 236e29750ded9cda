"""Waiting entries in the order in which they are tried: by rank among the tenants whose turn it is.

Knows a heap per tenant, and one of the tenants' heads, so that many tenants cost no more than one. Does not
know why a tenant is held back, nor what happens to what it yields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from tidemill_engine.scheduler.entry import has_its_rank
from tidemill_engine.scheduler.lazy_heap import LazyHeap, Slot, Walk

if TYPE_CHECKING:
    from tidemill_engine.scheduler.entry import Entry
    from tidemill_engine.scheduler.fairness import TenantCounters

_Opened = tuple[int, "Walk[Entry]"]


class FairRanking:
    """A tenant is eligible while its counter is at most `slack` over the least one of those that wait."""

    def __init__(self, tenants: TenantCounters, *, slack: float, is_held_back: Callable[[int], bool]) -> None:
        self._tenants = tenants
        self._slack = slack
        self._is_held_back = is_held_back
        self._heaps: dict[int, LazyHeap[Entry]] = {}
        self._heads: LazyHeap[int] = LazyHeap(self._is_head)
        self._head_slots: dict[int, Slot[int]] = {}
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._heads) + sum(len(heap) for heap in self._heaps.values())

    def push(self, entry: Entry) -> None:
        """Put an entry where its rank belongs; where it was before is stale."""
        index = entry.request.tenant_index
        if index not in self._heaps:
            self._heaps[index] = LazyHeap(has_its_rank)
        self._heaps[index].push(entry.rank, entry)
        self._changed.add(index)

    def note_change(self, index: int) -> None:
        """Note that one of a tenant's entries waits no more."""
        self._changed.add(index)

    def forget_idle(self, index: int) -> None:
        """Drop what is kept of a tenant of which nobody waits."""
        if index not in self._tenants.waiting:
            self._heaps.pop(index, None)
            self._head_slots.pop(index, None)
            self._changed.discard(index)

    def first(self, held_back: Collection[int] = ()) -> Entry | None:
        """Return the first of `entries` if only these tenants were held back."""
        is_held_back, self._is_held_back = self._is_held_back, held_back.__contains__
        try:
            return next(self.entries(), None)
        finally:
            self._is_held_back = is_held_back

    def entries(self) -> Iterator[Entry]:
        """Yield the eligible tenants' entries by rank, and then the others' in further rounds."""
        self._renew_heads()
        limit = self._tenants.minimum() + self._slack
        aside: dict[int, Walk[Entry]] = {}
        yield from self._round(self._heads.walk(), limit, aside)
        while aside:
            limit = self._tenants.minimum(aside) + self._slack
            heads: LazyHeap[int] = LazyHeap(lambda _slot: True)
            walks, aside = aside, {}
            for index, walk in walks.items():
                if (slot := walk.peek()) is not None:
                    heads.push(slot.key, index)
            yield from self._round(heads.walk(), limit, aside, walks)

    def _round(
        self,
        heads: Walk[int],
        limit: float,
        aside: dict[int, Walk[Entry]],
        walks: dict[int, Walk[Entry]] | None = None,
    ) -> Iterator[Entry]:
        """Merge the tenants whose counters are within the limit; those beyond it are put aside."""
        opened: LazyHeap[_Opened] = LazyHeap(lambda _slot: True)
        while True:
            head, best = heads.peek(), opened.top()
            if head is not None and (best is None or head.key < best.key):
                heads.advance()
                index = head.item
                walk = walks[index] if walks else self._heaps[index].walk()
            elif best is not None:
                opened.pop()
                index, walk = best.item
            else:
                return
            if self._is_held_back(index):
                continue
            if self._tenants.counter(index) > limit:
                aside[index] = walk  # what was taken meanwhile may have used up its share of this round
                continue
            if (slot := walk.peek()) is not None:
                walk.advance()
                yield slot.item
            if (slot := walk.peek()) is not None:
                opened.push(slot.key, (index, walk))

    def _renew_heads(self) -> None:
        """Put the heads of the tenants that have changed where they belong."""
        for index in self._changed:
            heap = self._heaps.get(index)
            top = heap.top() if heap is not None else None
            known = self._head_slots.get(index)
            if top is not None and (known is None or known.key is not top.key):
                self._head_slots[index] = self._heads.push(top.key, index)
        self._changed.clear()

    def _is_head(self, slot: Slot[int]) -> bool:
        """Say whether this is where a tenant's first entry stands now."""
        if self._head_slots.get(slot.item) is not slot:
            return False
        heap = self._heaps.get(slot.item)
        top = heap.top() if heap is not None else None
        return top is not None and top.key is slot.key
