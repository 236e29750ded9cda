"""The document that the autoscaler reads from every engine every few seconds: small, flat, complete.

Knows which figures scaling and draining need. Gauges say now; what ends in `_total` only grows within one
process, which `started` tells apart from the one before it. Does not know HTTP.
"""

from __future__ import annotations

import time
from typing import Any

from tidemill_engine.api.context import ApiContext
from tidemill_engine.messages import CoreReady, CoreStats

_NO_STATS = CoreStats(
    num_running=0,
    num_waiting=0,
    num_free_blocks=0,
    num_total_blocks=0,
    num_steps=0,
    num_preemptions=0,
    prompt_tokens=0,
    generation_tokens=0,
)
_STEP_PARTS = ("fixed", "token", "context_token", "attention_pair", "row")
_STARTED = time.time()


def load_document(context: ApiContext) -> dict[str, Any]:
    """Gather the figures of this moment."""
    now = context.snapshot()
    stats = now.stats or _NO_STATS
    total = stats.num_total_blocks
    return {
        "started": round(_STARTED, 3),
        "ready": now.is_ready,
        "draining": now.is_draining,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "waiting_prompt_tokens": stats.waiting_prompt_tokens,
        "in_flight_requests": context.requests.num,
        "in_flight_tokens": now.num_in_flight_tokens,
        "answered_requests": context.requests.num_answered,
        "failed_requests": context.requests.num_failed,
        "cached_blocks": stats.num_cached_blocks,
        "kv_cache_usage": round(1 - stats.num_free_blocks / total, 6) if total else 0.0,
        "free_blocks": stats.num_free_blocks,
        "total_blocks": total,
        **_limits(now.ready),
        "preemptions_total": stats.num_preemptions,
        "requests_total": context.metrics.num_ended,
        "prompt_tokens_total": stats.prompt_tokens,
        "computed_tokens_total": stats.computed_tokens,
        "generation_tokens_total": stats.generation_tokens,
        "prefix_cache_queries_total": stats.prefix_queries_tokens,
        "prefix_cache_hits_total": stats.prefix_hits_tokens,
        **context.metrics.latencies(),
        **_step_seconds(stats),
    }


def _step_seconds(stats: CoreStats) -> dict[str, dict[str, float]]:
    """Return what the engine has learned of its own steps, in seconds per thing that a step contains."""
    if not stats.step_coefficients:
        return {}
    return {"step_seconds": dict(zip(_STEP_PARTS, stats.step_coefficients, strict=True))}


def _limits(ready: CoreReady | None) -> dict[str, int]:
    if ready is None:
        return {}
    return {
        "block_size": ready.block_size,
        "max_num_seqs": ready.max_num_seqs,
        "max_num_batched_tokens": ready.max_num_batched_tokens,
    }
