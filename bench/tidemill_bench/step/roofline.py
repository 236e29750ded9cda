"""What a machine could do at best with this model. Pure: measured floors and a workload in, rates out.

Linear layers at their fastest, keys and values read once at full bandwidth, prefill attention at peak. A
bound, not a forecast: no norm, rotation, softmax, sampling, scheduling or HTTP is in it.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemill_bench.load.workload import SHAPES, plan_requests
from tidemill_bench.race.contender import Workload, concurrency_of
from tidemill_bench.smollm2 import VOCAB_SIZE

CHUNK_TOKENS = 512
_SAMPLE_REQUESTS_PER_SLOT = 8
_SEED = 1


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """What attention costs in a model; the default is SmolLM2-135M with 2-byte keys and values."""

    num_layers: int = 30
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    bytes_per_value: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values that one token leaves in the cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_value

    @property
    def attention_flop_per_pair(self) -> int:
        """Return the operations of one query token on one token of context, all layers and heads."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class MachineFloor:
    """What was measured. Linear layers: seconds of all of them in one step, by number of tokens."""

    layer_seconds: dict[int, float]
    head_seconds: dict[int, float]
    bytes_per_second: float
    flop_per_second: float
    best_paths: dict[int, str] = field(default_factory=dict)
    model: ModelCost = field(default_factory=ModelCost)

    def layers(self, num_tokens: float) -> float:
        """Return the seconds of the layers' matrices for so many tokens, between those that were measured."""
        return _between(self.layer_seconds, num_tokens)

    def head(self, num_rows: float) -> float:
        """Return the seconds of the output matrix for so many rows."""
        return _between(self.head_seconds, num_rows)

    def step(self, num_rows: int, context: int) -> float:
        """Return the least seconds of a step in which so many rows decode at that context."""
        reads = num_rows * context * self.model.kv_bytes_per_token / self.bytes_per_second
        return self.layers(num_rows) + self.head(num_rows) + reads


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A request's tokens: of the prompt, of them found in the cache, and of the output."""

    prompt: int
    output: int
    cached: int = 0


def least_seconds(floor: MachineFloor, requests: Sequence[Lengths], concurrency: int) -> float:
    """Return the least time in which requests can be served, so many at a time.

    Prompts are computed in chunks of 512 that carry the decoding rows along: those pay only what one more
    token costs in a full chunk, and no weights are read for them.
    """
    new_prompt = sum(r.prompt - r.cached for r in requests)
    token_in_chunk = floor.layers(CHUNK_TOKENS) / CHUNK_TOKENS
    occupancy = list(_occupancy([max(0, r.output - 1) for r in requests], concurrency))
    decoded = sum(rows * steps for rows, steps in occupancy)
    decode = sum(steps * (floor.layers(rows) + floor.head(rows)) for rows, steps in occupancy)
    if decoded:
        mean_rows = decoded / sum(steps for _, steps in occupancy)
        carried = min(decoded, new_prompt / CHUNK_TOKENS * mean_rows)
        decode -= carried * (floor.layers(mean_rows) / mean_rows - token_in_chunk)
    first_tokens = len(requests) * floor.head(concurrency) / concurrency
    pairs = sum((r.prompt**2 - r.cached**2) / 2 for r in requests)
    contexts = sum((r.output - 1) * (r.prompt + r.output / 2) for r in requests)
    attention = pairs * floor.model.attention_flop_per_pair / floor.flop_per_second
    reads = contexts * floor.model.kv_bytes_per_token / floor.bytes_per_second
    return new_prompt * token_in_chunk + decode + first_tokens + attention + reads


def workload_rates(
    floor: MachineFloor,
    workloads: Iterable[Workload],
    *,
    seeds: Sequence[int] = (_SEED,),
    num_requests: Callable[[Workload], int] | None = None,
) -> dict[Workload, float]:
    """Return each workload's best rate: prompt tokens a second for prefill, else output tokens.

    The requests are those that were drawn from these seeds, as many of each as were sent (8 for each slot if
    not given): a short run ends with few rows, and even the best engine is slow then. The median by seed.
    """
    return {
        workload: statistics.median(
            _best_rate(floor, workload, seed, num_requests(workload) if num_requests else None)
            for seed in seeds
        )
        for workload in workloads
    }


def _best_rate(floor: MachineFloor, workload: Workload, seed: int, count: int | None) -> float:
    """Return the best rate of one draw of requests."""
    concurrency = concurrency_of(workload)
    shared = SHAPES[workload].shared_tokens
    requests = [
        Lengths(prompt=len(r.prompt_token_ids), output=r.output_tokens, cached=shared if r.index else 0)
        for r in plan_requests(workload, count or _SAMPLE_REQUESTS_PER_SLOT * concurrency, VOCAB_SIZE, seed)
    ]
    tokens = sum(r.prompt if workload == "prefill" else r.output for r in requests)
    return tokens / least_seconds(floor, requests, concurrency)


def _occupancy(outputs: Iterable[int], concurrency: int) -> Iterable[tuple[int, int]]:
    """Yield (rows, steps): how many requests decode together for how long, as slots become free."""
    ends: list[int] = []
    now = 0
    for output in outputs:
        if len(ends) == concurrency:
            free = heapq.heappop(ends)
            if free > now:
                yield concurrency, free - now
                now = free
        heapq.heappush(ends, now + output)
    while ends:
        rows = len(ends)
        end = heapq.heappop(ends)
        if end > now:
            yield rows, end - now
            now = end


def _between(seconds: dict[int, float], count: float) -> float:
    """Return a value between measured ones, in proportion above the largest."""
    counts = sorted(seconds)
    if count > counts[-1]:
        return seconds[counts[-1]] * count / counts[-1]
    return float(np.interp(count, counts, [seconds[known] for known in counts]))
