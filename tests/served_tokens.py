"""Serving prompts by a runner, and comparing what two of them said.

A token may differ only where the two best were closer than `MARGIN`; after such a place texts part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine_builders import Harness, make_request, make_scheduler
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.messages import RequestOutput, TokenLogprobs
from tidemill_engine.runner.base import ModelRunner
from tidemill_engine.runner.load import load_runner
from tidemill_engine.scheduler.seams import Seams

MARGIN = 1e-4


def load_on_cpu(directory: Path, **model: Any) -> ModelRunner:
    """Load a tiny model onto the CPU, in float32."""
    config = CoreConfig(
        model=ModelConfig(uri=f"file://{directory}", **({"dtype": "float32"} | model)),
        cache=CacheConfig(num_blocks=64, block_size=4),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16),
    )
    return load_runner(config, lambda _read, _total: None)


def serve(
    runner: ModelRunner,
    prompts: list[list[int]],
    *,
    depth: int = 2,
    num_blocks: int = 64,
    seams: Seams | None = None,
    budget: int = 16,
    max_tokens: int = 6,
    **sampling: Any,
) -> Harness:
    info = replace(runner.info, num_blocks=num_blocks)
    scheduler = make_scheduler(info, max_num_batched_tokens=budget, seams=seams)
    harness = Harness(scheduler=scheduler, runner=runner, depth=depth)
    for index, prompt in enumerate(prompts):
        params = {"temperature": 0.0, "num_logprobs": 2} | sampling
        harness.add(make_request(str(index), prompt=prompt, max_tokens=max_tokens, **params), seed=index)
    harness.run()
    return harness


def entries(harness: Harness, request_id: str) -> list[TokenLogprobs]:
    outputs: list[RequestOutput] = [o for o in harness.outputs if o.request_id == request_id]
    return [entry for output in outputs for entry in output.logprobs]


def assert_same(found: Harness, wanted: Harness, count: int) -> None:
    for index in range(count):
        said, right = entries(found, str(index)), entries(wanted, str(index))
        assert len(said) == len(right) > 0
        for mine, theirs in zip(said, right, strict=True):
            if mine.token_ids[0] != theirs.token_ids[0]:
                assert theirs.logprobs[1] - theirs.logprobs[2] < MARGIN
                break
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-3)
