"""Virtual token counters: what each tenant has been served, by weight (arXiv 2401.00588).

Knows tenants' names, counters and how many of their requests wait or live. Does not know requests or their
order. A tenant gets an index while any of its requests lives; the counters of tenants without any are
remembered for a bounded number of them, and forgotten once the active minimum has overtaken them.

Counters share what is served, but slots and blocks that a tenant holds are held until its requests end. So a
tenant may hold all of them only while no other is active; else half, or its weight's share if that is more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tidemill_engine.step import FloatArray, IntArray

OUTPUT_WEIGHT = 2.0
"""An output token counts as much as this many prompt tokens."""
MAX_IDLE_TENANTS = 4096
ACTIVE_SECONDS = 60.0
"""So long after its last request has ended a tenant still counts as active."""
_FIRST_CAPACITY = 64


class _Idle(NamedTuple):
    """What is remembered of a tenant without requests."""

    counter: float
    left_at: float
    weight: float


_NOTHING = _Idle(0.0, float("-inf"), 1.0)


class TenantCounters:
    """Counters `[capacity]` by tenant index; an index is given anew once its tenant is idle.

    `weights` are those of tenants whose requests bring none.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._indices: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._weight_of: dict[int, float] = {}
        self._num_live: dict[int, int] = {}
        self._num_waiting: dict[int, int] = {}
        self._idle: OrderedDict[str, _Idle] = OrderedDict()
        self._counters: FloatArray = np.zeros(_FIRST_CAPACITY, dtype=np.float64)
        self._per_output: FloatArray = np.zeros(_FIRST_CAPACITY, dtype=np.float64)
        self._free = list(range(_FIRST_CAPACITY - 1, -1, -1))
        self._floor = 0.0

    @property
    def num_remembered(self) -> int:
        """Return of how many tenants anything is kept."""
        return len(self._indices) + len(self._idle)

    @property
    def waiting(self) -> Iterable[int]:
        """Return the indices of tenants with waiting requests."""
        return self._num_waiting.keys()

    def counter(self, index: int) -> float:
        """Return what a tenant has been served, divided by its weight."""
        return float(self._counters[index])

    def name(self, index: int) -> str:
        """Return the tenant that has this index now."""
        return self._names[index]

    def enter(self, name: str, weight: float | None = None) -> int:
        """Count a request in and return its tenant's index; what it says of the weight counts from now on."""
        index = self._indices.get(name)
        if index is None:
            index = self._take_index(name)
        self._num_live[index] += 1
        self._weight_of[index] = self._weights.get(name, 1.0) if weight is None else weight
        self._per_output[index] = OUTPUT_WEIGHT / self._weight_of[index]
        return index

    def num_running(self, index: int) -> int:
        """Return how many of a tenant's requests live and do not wait."""
        return self._num_live.get(index, 0) - self._num_waiting.get(index, 0)

    def max_held(self, index: int, num_places: int, now: float) -> int:
        """Return how many of so many slots or blocks a tenant may hold now."""
        newest = next(reversed(self._idle.values()), None)
        is_one_idle = newest is not None and now - newest.left_at < ACTIVE_SECONDS
        if len(self._indices) < 2 and not is_one_idle:
            return num_places
        total = sum(self._weight_of.values())
        if newest is not None and is_one_idle:
            total += newest.weight
        share = self._weight_of[index] / total
        return max(-(-num_places // 2), int(share * num_places))

    def leave(self, index: int, now: float) -> None:
        """Count an ended request out; an idle tenant gives its index back."""
        self._num_live[index] -= 1
        if self._num_live[index]:
            return
        name = self._names.pop(index)
        del self._num_live[index], self._indices[name]
        if not self._num_live:
            self._floor = max(self._floor, float(self._counters[index]))
        self._free.append(index)
        self._idle[name] = _Idle(float(self._counters[index]), now, self._weight_of.pop(index))
        self._forget_overtaken(now)

    def begin_waiting(self, index: int, *, is_new: bool) -> None:
        """Count a waiting request; a tenant that returns is lifted to the active minimum.

        Where nobody waits that is the least of the tenants that run: what they were served while nobody else
        wanted it is no debt.
        """
        count = self._num_waiting.get(index, 0)
        if count == 0 and is_new:
            others = self._num_waiting or [other for other in self._num_live if other != index]
            self._floor = self.minimum(others)
            self._counters[index] = max(self._counters[index], self._floor)
        self._num_waiting[index] = count + 1

    def stop_waiting(self, index: int) -> None:
        """Count a request that waits no more."""
        if self._num_waiting[index] > 1:
            self._num_waiting[index] -= 1
            return
        self._floor = self.minimum()
        del self._num_waiting[index]

    def minimum(self, among: Iterable[int] | None = None) -> float:
        """Return the least counter of the tenants with waiting requests, the last known if nobody waits."""
        indices = list(self._num_waiting if among is None else among)
        if not indices:
            return self._floor
        return float(self._counters[indices[0]] if len(indices) == 1 else self._counters[indices].min())

    def charge(self, index: int, *, num_prompt_tokens: int = 0, num_output_tokens: int = 0) -> None:
        """Add what one tenant was served."""
        per_output = float(self._per_output[index])
        served = num_prompt_tokens / OUTPUT_WEIGHT + num_output_tokens
        self._counters[index] += served * per_output

    def charge_outputs(self, indices: IntArray) -> None:
        """Add one output token for each entry: `[num_rows]` tenant indices, with repetition."""
        counts = np.bincount(indices, minlength=len(self._counters))
        self._counters += counts * self._per_output

    def _take_index(self, name: str) -> int:
        """Give a tenant an index, with the counter that is remembered of it."""
        if not self._free:
            self._grow()
        index = self._free.pop()
        self._indices[name] = index
        self._names[index] = name
        self._num_live[index] = 0
        self._counters[index] = self._idle.pop(name, _NOTHING).counter
        return index

    def _grow(self) -> None:
        """Double the arrays."""
        size = len(self._counters)
        self._counters = np.concatenate([self._counters, np.zeros(size)])
        self._per_output = np.concatenate([self._per_output, np.zeros(size)])
        self._free = list(range(2 * size - 1, size - 1, -1))

    def _forget_overtaken(self, now: float) -> None:
        """Forget idle tenants that a return would lift anyway, oldest first, and any beyond the bound."""
        while self._idle:
            name, idle = next(iter(self._idle.items()))
            is_needed = idle.counter > self._floor or now - idle.left_at < ACTIVE_SECONDS
            if is_needed and len(self._idle) <= MAX_IDLE_TENANTS:
                return
            del self._idle[name]
