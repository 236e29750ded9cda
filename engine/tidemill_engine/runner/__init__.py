"""The device side: takes a `SchedulerOutput`, returns tokens. `base` states the contract."""

from tidemill_engine.runner.base import ModelRunner, RunnerInfo

__all__ = ["ModelRunner", "RunnerInfo"]
