"""Who waits for a service, and who is next: weighted fair between tenants.

Pure. Knows tenants, weights and costs. Refuses to know clocks, sockets and what the waiting items are.

Each waiting tenant has a virtual time that grows by cost / weight with each of its items that leaves; the
one that is least far goes next (start-time fair queueing, Goyal et al. 1996, with the tags kept per tenant
so that an item which gives up costs its tenant nothing). A tenant that comes back begins at the queue's own
time, or where it was if that is further: having been away earns no credit and forgives no debt.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
MAX_IDLE_DEBTS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """Whose an item is, the tenant's weight, and what the item costs, in tokens."""

    tenant: str
    weight: int = 1
    cost: int = 1


@dataclass(kw_only=True, slots=True)
class _Line(Generic[Item]):
    """The waiting items of one tenant, oldest first."""

    time: float
    weight: int
    items: OrderedDict[int, tuple[Item, int]] = field(default_factory=OrderedDict)


class FairQueue(Generic[Item]):
    """Waiting items; the caller's ticket number takes an item out again."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[Item]] = {}
        self._debts: dict[str, float] = {}
        self._time = 0.0
        self._num = 0
        self._last_ticket = 0

    def __len__(self) -> int:
        return self._num

    def num_of(self, tenant: str) -> int:
        """Count a tenant's waiting items."""
        line = self._lines.get(tenant)
        return len(line.items) if line is not None else 0

    def push(self, item: Item, share: Share) -> int:
        """Let an item wait; give the ticket that takes it out."""
        line = self._lines.get(share.tenant)
        if line is None:
            time = max(self._debts.pop(share.tenant, 0.0), self._time)
            line = self._lines[share.tenant] = _Line(time=time, weight=share.weight)
        line.weight = max(share.weight, 1)
        self._last_ticket += 1
        line.items[self._last_ticket] = (item, max(share.cost, 1))
        self._num += 1
        return self._last_ticket

    def pop(self) -> Item | None:
        """Take out the next item; None when nobody waits."""
        if not self._lines:
            return None
        tenant, line = min(self._lines.items(), key=lambda entry: (entry[1].time, next(iter(entry[1].items))))
        _, (item, cost) = line.items.popitem(last=False)
        self._time = line.time
        line.time += cost / line.weight
        self._num -= 1
        self._drop_if_empty(tenant)
        return item

    def remove(self, ticket: int, tenant: str) -> bool:
        """Take out an item that gives up; say whether it still waited."""
        line = self._lines.get(tenant)
        if line is None or line.items.pop(ticket, None) is None:
            return False
        self._num -= 1
        self._drop_if_empty(tenant)
        return True

    def _drop_if_empty(self, tenant: str) -> None:
        """Forget a tenant that no longer waits, all but what it is ahead of the others."""
        if self._lines[tenant].items:
            return
        self._debts[tenant] = self._lines.pop(tenant).time
        if not self._lines:
            self._debts.clear()  # everybody has been served: the next rush begins anew
            self._time = 0.0
        elif len(self._debts) > 2 * len(self._lines) + MAX_IDLE_DEBTS:
            self._debts = {name: time for name, time in self._debts.items() if time > self._time}
