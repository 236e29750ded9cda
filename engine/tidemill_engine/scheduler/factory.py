"""Makes the scheduler that a configuration names.

Knows which kinds there are and nothing of how they decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_engine.scheduler.continuous import ContinuousScheduler
from tidemill_engine.scheduler.dynamic import DynamicScheduler
from tidemill_engine.scheduler.static import StaticScheduler

if TYPE_CHECKING:
    from tidemill_engine.config import SchedulerConfig, SchedulerKind
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.request import RequestLimits
    from tidemill_engine.scheduler.lifecycle import RequestLifecycle
    from tidemill_engine.scheduler.seams import Seams

KINDS: dict[SchedulerKind, type[RequestLifecycle]] = {
    "continuous": ContinuousScheduler,
    "static": StaticScheduler,
    "dynamic": DynamicScheduler,
}


def create_scheduler(
    config: SchedulerConfig, kv: KVCacheManager, limits: RequestLimits, seams: Seams | None = None
) -> RequestLifecycle:
    """Return a scheduler of the configured kind around an empty cache."""
    return KINDS[config.kind](config, kv, limits, seams)
