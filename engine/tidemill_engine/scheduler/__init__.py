"""Which tokens are computed next: one budget per step; requests join and leave at every step. Pure."""

from tidemill_engine.scheduler.base import Scheduler, SchedulerStats
from tidemill_engine.scheduler.continuous import ContinuousScheduler

__all__ = ["ContinuousScheduler", "Scheduler", "SchedulerStats"]
