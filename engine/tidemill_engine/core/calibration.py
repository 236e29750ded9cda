"""A few measured steps before the first request, so that chunk sizes and predictions begin with something.

Knows a runner, a bound on time and what to try. The requests are served by a scheduler of their own, of
which nothing is left but what was learnt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.core.engine import EngineCore
from tidemill_engine.kv import KVCacheManager
from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.scheduler import ContinuousScheduler

if TYPE_CHECKING:
    from tidemill_engine.config import SchedulerConfig
    from tidemill_engine.core.learning import Learning
    from tidemill_engine.request import RequestLimits
    from tidemill_engine.runner.base import ModelRunner

logger = logging.getLogger(__name__)

MAX_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Requests that start together: enough to see chunks and decodes of several sizes apart."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int


TRIALS = (
    Trial(num_requests=1, prompt_tokens=8, output_tokens=4),
    Trial(num_requests=4, prompt_tokens=16, output_tokens=4),
    Trial(num_requests=1, prompt_tokens=120, output_tokens=3),
    Trial(num_requests=8, prompt_tokens=8, output_tokens=4),
    Trial(num_requests=1, prompt_tokens=300, output_tokens=3),
    Trial(num_requests=16, prompt_tokens=24, output_tokens=4),
    Trial(num_requests=1, prompt_tokens=500, output_tokens=3),
)


def calibrate(
    config: SchedulerConfig,
    runner: ModelRunner,
    limits: RequestLimits,
    learning: Learning,
    clock: Callable[[], float],
    max_seconds: float = MAX_SECONDS,
) -> int:
    """Run the trials for at most so many seconds and return how many steps were measured."""
    info = runner.info
    kv = KVCacheManager(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        num_rows=config.max_num_seqs,
        max_tokens_per_row=limits.max_sequence_tokens,
    )
    engine = EngineCore(ContinuousScheduler(config, kv, limits), runner, clock, learning=learning)
    deadline = clock() + max_seconds
    num_steps = 0
    for trial in TRIALS:
        if clock() >= deadline:
            break
        _add(engine, trial, limits.vocab_size)
        while clock() < deadline and (output := engine.schedule()) is not None:
            engine.run(output)
            num_steps += 1
    logger.info("the step model after %d steps: %s", num_steps, learning.model.fitted())
    return num_steps


def _add(engine: EngineCore, trial: Trial, vocab_size: int) -> None:
    """Add a trial's requests, whose prompts mean nothing; those that can't run here are left out."""
    tokens = np.random.default_rng(trial.num_requests).integers(
        0, vocab_size, (trial.num_requests, trial.prompt_tokens)
    )
    for index in range(trial.num_requests):
        engine.add(
            EngineRequest(
                request_id=f"calibration-{index}",
                handle=index,
                prompt_token_ids=tokens[index].tolist(),
                sampling=SamplingParams(max_tokens=trial.output_tokens, temperature=0.0, ignore_eos=True),
                arrival_time=0.0,
            )
        )
