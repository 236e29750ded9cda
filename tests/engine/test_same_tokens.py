"""The same greedy tokens, however a prompt gets into the cache and whoever is in the batch: float32.

The yardstick is each prompt alone, cold and whole. A token may differ from it only where the two best were
closer than `MARGIN` there; after such a place the texts part and are not compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine_builders import Harness, make_request, make_scheduler
from tidemill_engine.messages import RequestOutput
from tidemill_engine.runner.base import ModelRunner
from tidemill_engine.scheduler.seams import Seams

pytestmark = pytest.mark.real_model

B = 16
NUM_OUTPUTS = 8
MARGIN = 1e-4
LENGTHS = [k * B + d for k in (1, 2, 6) for d in (-1, 0, 1)]


class SwapAlways:
    """Costs by which copying always pays."""

    def swap_seconds(self, num_blocks: int) -> float:
        return 0.0

    def recompute_seconds(self, num_tokens: int) -> float:
        return 1.0


@pytest.fixture(scope="module")
def runner(smollm2_runner: ModelRunner) -> ModelRunner:
    return smollm2_runner


@pytest.fixture(scope="module")
def prompts(english_token_ids: list[int]) -> dict[int, list[int]]:
    """English prompts by length, each from a place of its own."""
    return {length: english_token_ids[41 * i : 41 * i + length] for i, length in enumerate(LENGTHS)}


def make_harness(
    runner: ModelRunner, *, num_blocks: int = 400, seams: Seams | None = None, **scheduler: Any
) -> Harness:
    info = replace(runner.info, num_blocks=num_blocks)
    arguments = {"max_num_seqs": 32, "max_num_batched_tokens": 1024} | scheduler
    return Harness(scheduler=make_scheduler(info, seams=seams, **arguments), runner=runner)


def add(harness: Harness, request_id: str, prompt: list[int], max_tokens: int = NUM_OUTPUTS) -> None:
    harness.add(
        make_request(request_id, prompt=prompt, max_tokens=max_tokens, temperature=0.0, num_logprobs=2)
    )


def outputs_of(harness: Harness, request_id: str) -> list[RequestOutput]:
    return [output for output in harness.outputs if output.request_id == request_id]


class Yardstick:
    """Tokens of prompts alone, cold and whole, with the margin at each place; computed once each."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._known: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}

    def check(self, prompt: list[int], tokens: list[int]) -> None:
        """Fail unless these are the tokens, up to a place where two were as good."""
        expected, margins = self._of(prompt, len(tokens))
        for place, (token, right) in enumerate(zip(tokens, expected, strict=True)):
            if token != right:
                assert margins[place] < MARGIN, (
                    f"token {place} after {len(prompt)} tokens: {token}, not {right}"
                )
                return

    def _of(self, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        key = (num_tokens, *prompt)
        if key not in self._known:
            harness = make_harness(self._runner, is_prefix_caching=False)
            add(harness, "alone", prompt, num_tokens)
            harness.run()
            best = [entry.logprobs for output in outputs_of(harness, "alone") for entry in output.logprobs]
            margins = [abs(float(np.diff(sorted(set(found))[-2:])[0])) for found in best]
            self._known[key] = harness.tokens("alone"), margins
        return self._known[key]


@pytest.fixture(scope="module")
def yardstick(runner: ModelRunner) -> Yardstick:
    return Yardstick(runner)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_warm_cache_changes_no_token_around_block_boundaries(
    runner: ModelRunner, yardstick: Yardstick, prompts: dict[int, list[int]], length: int
) -> None:
    harness = make_harness(runner)
    for request_id in ("cold", "warm"):
        add(harness, request_id, prompts[length])
        harness.run()
        yardstick.check(prompts[length], harness.tokens(request_id))
    cached = [outputs_of(harness, request_id)[0].num_cached_tokens for request_id in ("cold", "warm")]
    assert cached == [0, (length - 1) // B * B]


@pytest.mark.parametrize("chunk", [1, 7, B, 33, 97])
def test_the_size_of_chunks_changes_no_token(
    runner: ModelRunner, yardstick: Yardstick, prompts: dict[int, list[int]], chunk: int
) -> None:
    harness = make_harness(runner, max_num_batched_tokens=chunk)
    add(harness, "r", prompts[97])
    harness.run()
    assert max(step.num_tokens for step in harness.steps) == chunk
    yardstick.check(prompts[97], harness.tokens("r"))


def test_a_batch_of_32_changes_no_token(
    runner: ModelRunner, yardstick: Yardstick, english_token_ids: list[int]
) -> None:
    harness = make_harness(runner, max_num_batched_tokens=256)
    prompts = [english_token_ids[29 * i : 29 * i + 5 + 2 * i] for i in range(32)]
    for i, prompt in enumerate(prompts):
        add(harness, str(i), prompt)
    harness.run()
    assert max(len(step.rows) for step in harness.steps) == 32
    for i, prompt in list(enumerate(prompts))[::4]:
        yardstick.check(prompt, harness.tokens(str(i)))


@pytest.mark.parametrize("way", ["recompute", "swap"])
def test_a_preemption_changes_no_token(
    runner: ModelRunner, yardstick: Yardstick, english_token_ids: list[int], way: str
) -> None:
    seams = Seams(costs=SwapAlways()) if way == "swap" else None
    harness = make_harness(runner, num_blocks=12, seams=seams)
    prompts = [english_token_ids[53 * i : 53 * i + 30 + i] for i in range(4)]
    for i, prompt in enumerate(prompts):
        add(harness, str(i), prompt, 28)
    harness.run()
    assert harness.scheduler.stats().num_preemptions > 0
    num_swapped = sum(len(step.swap_out) for step in harness.steps)
    assert (num_swapped > 0) == (way == "swap")
    for i, prompt in enumerate(prompts):
        yardstick.check(prompt, harness.tokens(str(i)))


def test_eight_requests_finish_in_twenty_blocks_though_two_prompts_need_twelve_each(
    runner: ModelRunner, yardstick: Yardstick, english_token_ids: list[int]
) -> None:
    harness = make_harness(runner, num_blocks=20, max_num_batched_tokens=128)
    lengths = [12 * B - 8 if i in (1, 4) else 20 + 3 * i for i in range(8)]
    prompts = [english_token_ids[31 * i : 31 * i + length] for i, length in enumerate(lengths)]
    for i, prompt in enumerate(prompts):
        add(harness, str(i), prompt)
    harness.run()
    for i, prompt in enumerate(prompts):
        assert harness.finish(str(i)).finish_reason == "length"
        yardstick.check(prompt, harness.tokens(str(i)))
