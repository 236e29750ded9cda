"""Which tokens are computed next: one budget per step; requests join and leave at every step. Pure."""

from tidemill_engine.scheduler.base import Scheduler, SchedulerStats
from tidemill_engine.scheduler.continuous import ContinuousScheduler
from tidemill_engine.scheduler.factory import create_scheduler

__all__ = ["ContinuousScheduler", "Scheduler", "SchedulerStats", "create_scheduler"]
