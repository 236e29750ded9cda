"""What a scheduler is given from outside: estimates, the size of chunks, what bringing a request back costs.

Knows the defaults, with which a scheduler is complete: it predicts nothing, lets chunks have the whole
budget and recomputes what it preempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill_engine.scheduler.chunking import WholeBudget
from tidemill_engine.scheduler.waiting import NO_ESTIMATES

if TYPE_CHECKING:
    from tidemill_engine.request import Request
    from tidemill_engine.scheduler.base import ChunkPolicy, PreemptionCosts
    from tidemill_engine.scheduler.order import Estimates
    from tidemill_engine.scheduler.rows import RowTable


class AlwaysRecompute:
    """Costs by which copying never pays."""

    def swap_seconds(self, num_blocks: int) -> float:
        """Return more than anything is worth."""
        return float("inf") if num_blocks else 0.0

    def recompute_seconds(self, num_tokens: int) -> float:
        """Return a second per token."""
        return float(num_tokens)


def _whole_budget(_rows: RowTable) -> ChunkPolicy:
    return WholeBudget()


def _ignore(_request: Request) -> None:
    """Take no notice of a request's end."""


@dataclass(frozen=True, kw_only=True)
class Seams:
    """`make_chunks` is given the scheduler's rows; `on_end` is told each request that ends by itself."""

    estimates: Estimates = NO_ESTIMATES
    make_chunks: Callable[[RowTable], ChunkPolicy] = _whole_budget
    costs: PreemptionCosts = field(default_factory=AlwaysRecompute)
    on_end: Callable[[Request], None] = _ignore
