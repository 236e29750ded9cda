"""NVIDIA Dynamo's planner in load mode, aggregated workers, with TTFT and ITL targets.

Source: docs.nvidia.com/dynamo (v1.5), "Planner", load-based scaling, and its design page: each worker's
next TTFT and ITL are estimated from its queued prompt tokens and its decoding context by a fitted model of
its steps; one more worker where every worker's estimate is above a target; one fewer where, with the load
of N on N - 1, each stays below the targets times a sensitivity (80 %), the KV cache holds it, and both
agree; every 5 s, but nothing while workers come or go. Here the fitted model is the step times that each
replica reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill_bench.fleet.peers.observed import figures, num_ready, num_staying

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import EngineFigures, FleetLoad, StepTimes


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The planner's configuration."""

    ttft_seconds: float
    itl_seconds: float
    sensitivity: float = 0.8
    max_num_batched_tokens: int = 512


class LoadPlanner:
    """One deployment's planner."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._mean_prompt = 512.0
        self._before = (0.0, 0.0)

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""
        current, known = num_staying(load), figures(load)
        self._learn(load)
        if current != num_ready(load) or any(r.is_draining for r in load.replicas):
            return None
        workers = [(f, f.step_times) for f in known if f.step_times is not None]
        if not workers or len(workers) != current:
            return None
        t = self._targets
        estimates = [(self._ttft(f, times, 1.0), self._itl(f, times, 1.0)) for f, times in workers]
        if all(e[0] > t.ttft_seconds for e in estimates) or all(e[1] > t.itl_seconds for e in estimates):
            return current + 1
        if current > 1 and all(self._may_go(f, times, current / (current - 1)) for f, times in workers):
            return current - 1
        return None

    def _may_go(self, worker: EngineFigures, times: StepTimes, more: float) -> bool:
        t = self._targets
        own = self._ttft(worker, times, 0.0)
        queue_budget = (t.ttft_seconds - own) * t.sensitivity
        queued = worker.waiting_prompt_tokens or 0
        held = worker.kv_use * worker.capacity_tokens + queued
        return (
            queue_budget > 0
            and self._ttft(worker, times, more) - own < queue_budget
            and held * more < worker.capacity_tokens
            and self._itl(worker, times, more) < t.itl_seconds * t.sensitivity
        )

    def _ttft(self, worker: EngineFigures, times: StepTimes, more: float) -> float:
        """Estimate the next request's TTFT with so many times the load."""
        tokens = (worker.waiting_prompt_tokens or 0) * more + self._mean_prompt
        steps = math.ceil(tokens / self._targets.max_num_batched_tokens)
        return steps * self._decode(worker, times, more) + tokens * times.token_seconds

    def _itl(self, worker: EngineFigures, times: StepTimes, more: float) -> float:
        """Estimate the next step's time with so many times the load."""
        return self._decode(worker, times, more)

    @staticmethod
    def _decode(worker: EngineFigures, times: StepTimes, more: float) -> float:
        context = worker.kv_use * worker.capacity_tokens
        per_row = times.token_seconds + times.row_seconds
        return times.fixed_seconds + more * (
            per_row * worker.num_running + times.context_token_seconds * context
        )

    def _learn(self, load: FleetLoad) -> None:
        """Keep the mean prompt length of late."""
        demands = [g.demand for g in load.gateways if g.demand is not None]
        now = (sum(d.requests_total for d in demands), sum(d.prompt_tokens_total for d in demands))
        requests, tokens = now[0] - self._before[0], now[1] - self._before[1]
        if requests > 0:
            self._mean_prompt += 0.1 * (tokens / requests - self._mean_prompt)
        self._before = now
