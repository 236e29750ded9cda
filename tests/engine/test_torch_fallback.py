"""Without a C++ compiler: torch computes, says so once, and scattered blocks change no token."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_builders import Harness, make_request, make_scheduler
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.runner.base import ModelRunner
from tidemill_engine.runner.load import load_runner
from tidemill_engine.runner.torch_cpu import TorchCpuRunner
from tidemill_engine.scheduler.seams import Seams
from tiny_models import prompts_of, save_model

pytestmark = pytest.mark.slow

NUM_OUTPUTS = 20
LOGIT_MARGIN = 1e-3


class SwapAlways:
    """Costs by which copying always pays."""

    def swap_seconds(self, num_blocks: int) -> float:
        return 0.0

    def recompute_seconds(self, num_tokens: int) -> float:
        return 1.0


def load(directory: Path, dtype: str) -> ModelRunner:
    config = CoreConfig(
        model=ModelConfig(uri=f"file://{directory}", dtype=dtype),  # type: ignore[arg-type]
        cache=CacheConfig(num_blocks=80, block_size=4, swap_bytes=1 << 20),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24),
    )
    return load_runner(config, lambda _read, _total: None)


def test_without_a_compiler_a_model_is_served_and_the_log_says_why_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(tmp_path, "Llama")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TIDEMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tidemill_kernels.native.build.PREBUILT", tmp_path / "none")
    with caplog.at_level(logging.INFO):
        runner = load(tmp_path, "auto")
        assert isinstance(runner, TorchCpuRunner)
        harness = Harness(scheduler=make_scheduler(runner.info), runner=runner)
        for index, prompt in enumerate(prompts_of(5, 30)):
            harness.add(make_request(str(index), prompt=prompt, max_tokens=5))
        harness.run()
    assert [len(harness.tokens(name)) for name in "01"] == [5, 5]
    said = [record for record in caplog.records if "compiler" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    assert "no C++ compiler was found" in said[0].getMessage()


@pytest.mark.parametrize("way", ["recompute", "swap", "roomy"])
def test_scattered_shared_and_swapped_blocks_change_no_token(tmp_path: Path, way: str) -> None:
    oracle = save_model(tmp_path, "Llama")
    runner = load(tmp_path, "float32")
    info = replace(runner.info, num_blocks=80 if way == "roomy" else 30)
    seams = Seams(costs=SwapAlways()) if way == "swap" else None
    harness = Harness(scheduler=make_scheduler(info, max_num_batched_tokens=24, seams=seams), runner=runner)
    shared, *rest = prompts_of(25, 1, 7, 13, 30, 2)
    prompts = [shared + own for own in rest]
    for index, prompt in enumerate(prompts):
        harness.add(make_request(str(index), prompt=prompt, max_tokens=NUM_OUTPUTS, temperature=0.0))
        harness.step()
    harness.run()
    assert (harness.scheduler.stats().num_preemptions > 0) == (way != "roomy")
    assert (sum(len(step.swap_out) for step in harness.steps) > 0) == (way == "swap")
    assert harness.scheduler.stats().prefix_hits_tokens > 0
    for index, prompt in enumerate(prompts):
        check_greedy(oracle, prompt, harness.tokens(str(index)))


def check_greedy(oracle: torch.nn.Module, prompt: list[int], tokens: list[int]) -> None:
    """Fail unless each token is the best after those before it, or as good as the best."""
    assert len(tokens) == NUM_OUTPUTS or tokens[-1] == 1
    with torch.inference_mode():
        logits = oracle(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert float((logits.max(-1).values - chosen).max()) < LOGIT_MARGIN
