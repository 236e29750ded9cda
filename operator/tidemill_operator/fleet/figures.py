"""What one answer of an engine or a gateway says, in the autoscaler's terms.

Pure. Knows our `/load` and `/demand` documents and the metric names that vLLM and SGLang export. An answer
that lacks what every decision needs is missing, with the name of what it lacks: never zero. Refuses to know
where an answer came from.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from tidemill_operator.autoscaling.model import EngineFigures, GatewayDemand, Histogram, StepTimes
from tidemill_operator.fleet.exposition import Exposition, parse

Raw = Mapping[str, Any]

# vLLM's names, former ones after those of now, then SGLang's.
RUNNING: Final = ("vllm:num_requests_running", "sglang:num_running_reqs")
WAITING: Final = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
KV_USE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
CACHE_INFO: Final = "vllm:cache_config_info"
CACHE_TOKENS: Final = "sglang:max_total_num_tokens"
PROMPT_TOKENS: Final = ("vllm:prompt_tokens_total", "vllm:prompt_tokens", "sglang:prompt_tokens_total")
OUTPUT_TOKENS: Final = (
    "vllm:generation_tokens_total",
    "vllm:generation_tokens",
    "sglang:generation_tokens_total",
)
CACHED_TOKENS: Final = (
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits_total",
    "sglang:cached_tokens_total",
)
ENDED: Final = ("vllm:request_success_total", "vllm:request_success", "sglang:num_requests_total")
TTFT: Final = ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
ITL: Final = (
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
    "sglang:time_per_output_token_seconds",
)
STARTED: Final = ("process_start_time_seconds",)
WANTED: Final = frozenset(
    {
        *RUNNING, *WAITING, *KV_USE, CACHE_INFO, CACHE_TOKENS, *PROMPT_TOKENS, *OUTPUT_TOKENS, *CACHED_TOKENS,
        *ENDED, *STARTED, *(f"{name}_bucket" for name in (*TTFT, *ITL)),
    }
)  # fmt: skip
UNKNOWN_CAPACITY_BLOCKS: Final = 1_000_000
"""Where an engine does not say how many blocks it has, its use is told in millionths of the cache."""


class MissingFiguresError(ValueError):
    """An answer that does not say what every decision needs."""


def engine_from_load(body: bytes, now: float) -> EngineFigures:
    """Read our engine's `/load`; raise MissingFiguresError naming what it lacks."""
    raw = _document(body)
    total = _whole(raw, "total_blocks")
    generated = _number(raw, "generation_tokens_total")
    computed = _number(raw, "computed_tokens_total")
    if total == 0:
        raise MissingFiguresError("the engine has no figures yet: its model is loading")
    return EngineFigures(
        sampled_at=now,
        process_started=_number(raw, "started") or 0.0,
        num_running=_whole(raw, "running"),
        num_waiting=_whole(raw, "waiting"),
        held_blocks=float(total - _whole(raw, "free_blocks")),
        total_blocks=total,
        block_size_tokens=_whole(raw, "block_size"),
        max_num_seqs=_optional_whole(raw, "max_num_seqs"),
        waiting_prompt_tokens=_optional_whole(raw, "waiting_prompt_tokens"),
        prefill_tokens_total=None
        if computed is None or generated is None
        else max(0.0, computed - generated),
        cached_tokens_total=_number(raw, "prefix_cache_hits_total"),
        output_tokens_total=generated,
        requests_total=_number(raw, "requests_total"),
        time_to_first_token=_histogram(raw.get("time_to_first_token")),
        inter_token=_histogram(raw.get("inter_token_latency")),
        step_times=_step_times(raw.get("step_seconds")),
    )


def engine_from_metrics(text: str, now: float) -> EngineFigures:
    """Read any engine's `/metrics` by the known names; raise MissingFiguresError naming what it lacks."""
    found = parse(text, WANTED)
    running, waiting = _series(found, RUNNING), _series(found, WAITING)
    use = found.largest(*KV_USE)
    if use is None or not 0 <= use < math.inf:
        raise MissingFiguresError(f"the engine's /metrics has no {' or '.join(KV_USE)}")
    blocks, block_size = _cache_of(found)
    prompt, cached = found.total(*PROMPT_TOKENS), found.total(*CACHED_TOKENS)
    return EngineFigures(
        sampled_at=now,
        process_started=found.largest(*STARTED) or 0.0,
        num_running=round(running),
        num_waiting=round(waiting),
        held_blocks=use * blocks,
        total_blocks=blocks,
        block_size_tokens=block_size,
        prefill_tokens_total=None if prompt is None else max(0.0, prompt - (cached or 0.0)),
        cached_tokens_total=cached,
        output_tokens_total=found.total(*OUTPUT_TOKENS),
        requests_total=found.total(*ENDED),
        time_to_first_token=_buckets(found, *TTFT),
        inter_token=_buckets(found, *ITL),
    )


def demand_of_services(body: bytes, now: float) -> tuple[float, Mapping[str, GatewayDemand]]:
    """Read a gateway's `/demand`: when it started, and what it says of each service that it knows."""
    raw = _document(body)
    services = raw.get("services")
    if not isinstance(services, Mapping):
        raise MissingFiguresError("the gateway's /demand has no services")
    demands = {str(key): _demand(value, now) for key, value in services.items()}
    return _number(raw, "started") or 0.0, demands


def _demand(raw: Any, now: float) -> GatewayDemand:
    if not isinstance(raw, Mapping):
        raise MissingFiguresError("the gateway's /demand has a service that is no object")
    return GatewayDemand(
        sampled_at=now,
        held_requests=_whole(raw, "held_requests"),
        held_prompt_tokens=_whole(raw, "held_prompt_tokens"),
        in_flight_requests=_whole(raw, "in_flight_requests"),
        in_flight_tokens=_whole(raw, "in_flight_tokens"),
        requests_total=float(_whole(raw, "requests_total")),
        prompt_tokens_total=float(_whole(raw, "prompt_tokens_total")),
        output_tokens_total=float(_whole(raw, "output_tokens_total")),
        last_request_time=_number(raw, "last_request_time"),
    )


def _document(body: bytes) -> Raw:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MissingFiguresError(f"the answer is no JSON: {error}") from error
    if not isinstance(raw, Mapping):
        raise MissingFiguresError("the answer is no JSON object")
    return raw


def _number(raw: Raw, key: str) -> float | None:
    """Read a number; None for what is none, NaN and infinities included."""
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _optional_whole(raw: Raw, key: str) -> int | None:
    value = _number(raw, key)
    return None if value is None or value < 0 else round(value)


def _whole(raw: Raw, key: str) -> int:
    value = _optional_whole(raw, key)
    if value is None:
        raise MissingFiguresError(f"the answer has no {key}")
    return value


def _histogram(raw: Any) -> Histogram | None:
    """Read [[bound, cumulative count], ...] whose last bound is None; None for what is no histogram."""
    try:
        bounds = tuple(math.inf if bound is None else float(bound) for bound, _ in raw)
        counts = tuple(float(count) for _, count in raw)
    except (TypeError, ValueError):
        return None
    is_sound = bool(bounds) and bounds[-1] == math.inf and all(math.isfinite(count) for count in counts)
    return Histogram(upper_bounds_seconds=bounds, cumulative_counts=counts) if is_sound else None


def _step_times(raw: Any) -> StepTimes | None:
    if not isinstance(raw, Mapping):
        return None
    names = ("fixed", "token", "context_token", "attention_pair", "row")
    values = [_number(raw, name) for name in names]
    if any(value is None for value in values):
        return None
    fixed, token, context, pair, row = (value or 0.0 for value in values)
    return StepTimes(
        fixed_seconds=fixed,
        token_seconds=token,
        context_token_seconds=context,
        attention_pair_seconds=pair,
        row_seconds=row,
    )


def _series(found: Exposition, names: tuple[str, ...]) -> float:
    value = found.total(*names)
    if value is None or not 0 <= value < math.inf:
        raise MissingFiguresError(f"the engine's /metrics has no {' or '.join(names)}")
    return value


def _cache_of(found: Exposition) -> tuple[int, int]:
    """Give the KV cache's blocks and tokens per block, where the engine says them."""
    for sample in found.samples:
        if sample.name == CACHE_INFO:
            blocks, size = sample.labels.get("num_gpu_blocks", ""), sample.labels.get("block_size", "")
            if blocks.isdigit() and size.isdigit() and int(blocks) > 0:
                return int(blocks), int(size)
    tokens = found.total(CACHE_TOKENS)
    if tokens is not None and 1 <= tokens < math.inf:
        return round(tokens), 1
    return UNKNOWN_CAPACITY_BLOCKS, 0


def _buckets(found: Exposition, *names: str) -> Histogram | None:
    pairs = found.buckets(*names)
    if not pairs or pairs[-1][0] != math.inf:
        return None
    bounds, counts = zip(*pairs, strict=True)
    return Histogram(upper_bounds_seconds=bounds, cumulative_counts=counts)
