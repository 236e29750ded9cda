"""Greedy tokens of our own model against those of transformers: same GGUF file, float32."""

from __future__ import annotations

from typing import Any

import pytest

from engine_builders import Harness, make_request, make_scheduler
from tidemill_engine.messages import RequestOutput, TokenLogprobs
from tidemill_engine.runner.base import ModelRunner

pytestmark = pytest.mark.real_model

NUM_OUTPUTS = 6
MAX_NUM_SEQS = 32
MARGIN = 1e-4
"""Where the oracle's two best logits are closer than this, either token is right: sums have no one order."""
LOGPROB_TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def runner(smollm2_runner: ModelRunner) -> ModelRunner:
    return smollm2_runner


def harness(runner: ModelRunner, max_num_batched_tokens: int) -> Harness:
    scheduler = make_scheduler(
        runner.info, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=max_num_batched_tokens
    )
    return Harness(scheduler=scheduler, runner=runner)


def answers(harness: Harness, prompts: list[list[int]]) -> list[list[RequestOutput]]:
    """Serve all prompts together and return each one's outputs."""
    for index, prompt in enumerate(prompts):
        harness.add(
            make_request(str(index), prompt=prompt, max_tokens=NUM_OUTPUTS, temperature=0.0, num_logprobs=1)
        )
    harness.run()
    return [
        [output for output in harness.outputs if output.request_id == str(index)]
        for index in range(len(prompts))
    ]


class Oracle:
    """Logits of transformers for a sequence, one forward pass each, remembered."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], Any] = {}

    def logits(self, token_ids: list[int], num_last: int) -> Any:
        """Return the logits after each of the last positions: `[num_last, vocab_size]`."""
        import torch

        key = tuple(token_ids)
        if key not in self._known:
            with torch.inference_mode():
                output = self._model(torch.tensor([token_ids]), logits_to_keep=num_last, use_cache=False)
            self._known[key] = output.logits[0]
        return self._known[key]


@pytest.fixture(scope="module")
def oracle(transformers_smollm2: Any) -> Oracle:
    return Oracle(transformers_smollm2)


def check(oracle: Oracle, prompt: list[int], outputs: list[RequestOutput]) -> None:
    """Fail unless every token is the oracle's best, given the tokens before it."""
    tokens = [token for output in outputs for token in output.token_ids]
    assert len(tokens) == NUM_OUTPUTS
    logits = oracle.logits(prompt + tokens[:-1], NUM_OUTPUTS)
    logprobs = logits.log_softmax(-1)
    said: list[TokenLogprobs] = [entry for output in outputs for entry in output.logprobs]
    for position, token in enumerate(tokens):
        best = float(logits[position].max())
        assert float(logits[position, token]) > best - MARGIN, f"token {position} after {len(prompt)} tokens"
        expected = float(logprobs[position, token])
        assert said[position].logprobs[0] == pytest.approx(expected, abs=LOGPROB_TOLERANCE)
        assert said[position].token_ids[0] == token


def test_each_prompt_alone_and_whole_gets_the_tokens_of_transformers(
    runner: ModelRunner, oracle: Oracle, english_prompts: list[list[int]]
) -> None:
    assert len(english_prompts) >= 20
    for prompt in english_prompts:
        (outputs,) = answers(harness(runner, 1024), [prompt])
        check(oracle, prompt, outputs)


def test_all_prompts_together_in_small_chunks_get_the_tokens_of_transformers(
    runner: ModelRunner, oracle: Oracle, english_prompts: list[list[int]]
) -> None:
    together = harness(runner, 48)
    found = answers(together, english_prompts)
    assert max(len(step.rows) for step in together.steps) > 10
    assert any(0 < len(step.logit_rows) < len(step.rows) for step in together.steps)
    for prompt, outputs in zip(english_prompts, found, strict=True):
        check(oracle, prompt, outputs)
