"""The core's figures for the API process, at most every 100 ms, and a guess at how long the next step takes.

Knows counters and times that it is given.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tidemill_engine.messages import CoreStats

if TYPE_CHECKING:
    from tidemill_engine.core.engine import StepReport
    from tidemill_engine.scheduler.base import Scheduler
    from tidemill_engine.scheduler.step_model import StepModel

REPORT_SECONDS = 0.1
_MAX_ITERATIONS = 512
_FORGET = 0.95


class StatsCollector:
    """Gathers per-step figures between two reports."""

    def __init__(self, scheduler: Scheduler, model: StepModel | None = None) -> None:
        self._scheduler = scheduler
        self._model = model
        self._num_steps = 0
        self._computed_tokens = 0
        self._iteration_tokens: list[int] = []
        self._last_report: float | None = None
        self._seconds_per_token = 0.0
        self._step_seconds = 0.0

    def add_step(self, report: StepReport) -> None:
        """Count one step."""
        self._num_steps += 1
        self._computed_tokens += report.num_tokens
        if len(self._iteration_tokens) < _MAX_ITERATIONS:
            self._iteration_tokens.append(report.num_tokens)
        per_token = report.seconds / max(1, report.num_tokens)
        self._seconds_per_token = max(per_token, _FORGET * self._seconds_per_token)
        self._step_seconds = max(report.seconds, _FORGET * self._step_seconds)

    def predicted_seconds(self, num_tokens: int) -> float:
        """Guess a step's time, rather too long than too short: by the slowest steps of late.

        Nothing is known before the first one, in which a crowd's prompts may fill the whole budget.
        """
        if self._num_steps == 0:
            return math.inf
        return max(self._step_seconds, self._seconds_per_token * num_tokens)

    def is_due(self, now: float) -> bool:
        """Say whether the API process should hear again."""
        return self._last_report is None or now - self._last_report >= REPORT_SECONDS

    def take(self, now: float) -> CoreStats:
        """Return the figures and begin a new interval."""
        self._last_report = now
        iterations, self._iteration_tokens = self._iteration_tokens, []
        figures = self._scheduler.stats()
        return CoreStats(
            num_running=figures.num_running,
            num_waiting=figures.num_waiting,
            num_free_blocks=figures.num_free_blocks,
            num_total_blocks=figures.num_total_blocks,
            num_steps=self._num_steps,
            num_preemptions=figures.num_preemptions,
            prompt_tokens=figures.prompt_tokens,
            generation_tokens=figures.generation_tokens,
            waiting_prompt_tokens=figures.waiting_prompt_tokens,
            is_admission_open=figures.is_admission_open,
            num_swapped=figures.num_swapped,
            prefix_queries_tokens=figures.prefix_queries_tokens,
            prefix_hits_tokens=figures.prefix_hits_tokens,
            num_swap_blocks=figures.num_swap_blocks,
            num_free_swap_blocks=figures.num_free_swap_blocks,
            num_cached_blocks=figures.num_cached_blocks,
            kv_fragmentation_ratio=figures.kv_fragmentation_ratio,
            num_hopeless=figures.num_hopeless,
            effective_batch_tokens=figures.effective_batch_tokens,
            padding_tokens=figures.padding_tokens,
            computed_tokens=self._computed_tokens,
            step_coefficients=self._coefficients(),
            iteration_tokens=iterations,
            inter_token_seconds=self._scheduler.take_inter_token_seconds(),
        )

    def _coefficients(self) -> list[float]:
        if self._model is None or not self._model.is_fitted:
            return []
        return list(self._model.fitted().coefficients)
