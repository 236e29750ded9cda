"""The engine's metrics without an engine, for tests of names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tidemill_engine.messages import CoreReady, CoreStats
from tidemill_engine.metrics import EngineMetrics, Snapshot


def engine_registry() -> CollectorRegistry:
    """Build a registry that shows every metric."""
    ready = CoreReady(
        max_model_len=64,
        vocab_size=100,
        num_blocks=8,
        block_size=8,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        dtype="float32",
        load_seconds=0.0,
    )
    stats = CoreStats(
        num_running=0,
        num_waiting=0,
        num_free_blocks=8,
        num_total_blocks=8,
        num_steps=0,
        num_preemptions=0,
        prompt_tokens=0,
        generation_tokens=0,
    )
    snapshot = Snapshot(
        ready=ready,
        stats=stats,
        is_ready=True,
        is_draining=False,
        num_in_flight=0,
        num_in_flight_tokens=0,
        loaded_bytes=0,
        total_bytes=0,
    )
    return EngineMetrics("m", lambda: snapshot).registry
