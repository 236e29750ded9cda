"""Dynamic batching, as an honest baseline: static batches that wait a moment for company.

A batch begins when a preferred number of requests waits, or when the oldest has waited for the window.
Knows when to begin; everything else is static batching.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_engine.scheduler.static import StaticScheduler

if TYPE_CHECKING:
    from tidemill_engine.config import SchedulerConfig
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.request import RequestLimits
    from tidemill_engine.scheduler.seams import Seams


class DynamicScheduler(StaticScheduler):
    """Padded batches of preferred sizes."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        limits: RequestLimits,
        seams: Seams | None = None,
    ) -> None:
        super().__init__(config, kv, limits, seams)
        self._window_seconds = config.dynamic.window_seconds
        self._sizes = sorted({*config.dynamic.preferred_sizes, config.max_num_seqs}, reverse=True)

    def wait_seconds(self, now: float) -> float:
        """Return how much of the window is left to the oldest waiting request while no batch runs."""
        oldest = self._queue.oldest_arrival_time
        if oldest is None or self._rows.num_free < self._rows.num_rows:
            return 0.0
        return max(0.0, oldest + self._window_seconds - now)

    def num_to_begin(self, now: float) -> int:
        """Return the largest preferred number that waits, or all that wait once the window has passed."""
        num_waiting = len(self._queue)
        for size in self._sizes:
            if size <= num_waiting:
                return size
        oldest = self._queue.oldest_arrival_time
        if oldest is None or now < oldest + self._window_seconds:
            return 0
        return num_waiting
