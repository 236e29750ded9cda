"""Every metric of the engine, by name: those recorded as things happen, and those read at each scrape."""

from tidemill_engine.metrics.collected import Snapshot
from tidemill_engine.metrics.recorded import SECONDS, EngineMetrics, SequenceTimes

__all__ = ["SECONDS", "EngineMetrics", "SequenceTimes", "Snapshot"]
