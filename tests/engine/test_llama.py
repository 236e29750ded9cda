"""The native Llama family against transformers, with tiny random weights in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_builders import Harness, make_request, make_scheduler
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.llama import lazy_zeros
from tidemill_engine.runner import machine
from tidemill_engine.runner.cpu import CpuRunner
from tidemill_engine.runner.load import load_runner
from tidemill_engine.runner.torch_cpu import TorchCpuRunner
from tiny_models import prompts_of, save_model

LOGPROB_TOLERANCE = 1e-4
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""As in Llama 3.1, for a model so small that some pairs stay, some go over and some go slower."""


def load(directory: Path, *, budget: int = 16, **model: Any) -> CpuRunner:
    config = CoreConfig(
        model=ModelConfig(uri=f"file://{directory}", **({"dtype": "float32"} | model)),
        cache=CacheConfig(num_blocks=64, block_size=4),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget),
    )
    runner = load_runner(config, lambda _read, _total: None)
    assert isinstance(runner, CpuRunner)
    return runner


def serve(runner: CpuRunner, prompts: list[list[int]], **sampling: Any) -> Harness:
    scheduler = make_scheduler(runner.info, max_num_seqs=8, max_num_batched_tokens=16)
    harness = Harness(scheduler=scheduler, runner=runner)
    for index, prompt in enumerate(prompts):
        harness.add(make_request(str(index), prompt=prompt, max_tokens=6, **sampling))
    harness.run()
    return harness


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "rope_theta": 500.0}),
        ("Llama", {"num_key_value_heads": 4, "head_dim": 16}),
        ("Llama", {"rope_parameters": LLAMA3_ROPE}),
        ("Qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 8}),
    ],
    ids=str,
)
def test_greedy_tokens_and_log_probabilities_are_those_of_transformers(
    tmp_path: Path, family: str, changes: dict[str, object]
) -> None:
    oracle = save_model(tmp_path, family, **changes)
    prompts = prompts_of(1, 3, 9, 40)
    harness = serve(load(tmp_path), prompts, temperature=0.0, num_logprobs=0)
    for index, prompt in enumerate(prompts):
        outputs = [output for output in harness.outputs if output.request_id == str(index)]
        tokens = harness.tokens(str(index))
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        assert tokens == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        said = torch.tensor([output.logprobs[0].logprobs[0] for output in outputs])
        torch.testing.assert_close(said, expected, rtol=0, atol=LOGPROB_TOLERANCE)


@pytest.mark.slow
def test_a_row_whose_logits_are_not_numbers_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "Llama")
    runner = load(tmp_path)
    assert isinstance(runner, TorchCpuRunner)
    poison = 96
    model = runner._model
    embedding = model._embedding.clone()
    embedding[poison] = float("nan")
    monkeypatch.setattr(model, "_embedding", embedding)
    good, bad = [5, 6, 7], [5, poison, 7]
    alone = serve(runner, [good], temperature=0.0).tokens("0")
    harness = serve(runner, [bad, good], temperature=0.0)
    assert harness.finish("0").finish_reason == "error"
    assert "NaN" in str(harness.finish("0").error)
    assert harness.tokens("1") == alone
    assert harness.scheduler.stats().num_free_blocks == 64
    assert serve(runner, [good], temperature=0.0).tokens("0") == alone


@pytest.mark.slow
def test_seeds_decide_samples_alone_or_in_a_batch(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    runner = load(tmp_path)
    (prompt,) = prompts_of(5)
    scheduler = make_scheduler(runner.info, max_num_seqs=8, max_num_batched_tokens=16)
    harness = Harness(scheduler=scheduler, runner=runner)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        harness.add(make_request(name, prompt=prompt, max_tokens=12, seed=seed, top_p=0.95))
    harness.run()
    assert harness.tokens("a") == harness.tokens("b")
    assert harness.tokens("a") != harness.tokens("c")
    alone = serve(runner, [prompt], seed=1, top_p=0.95)
    assert alone.tokens("0") == harness.tokens("a")[:6]


@pytest.mark.slow
def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    prompts = prompts_of(7, 20)
    wide = serve(load(tmp_path), prompts, temperature=0.0, num_logprobs=0)
    narrow = serve(load(tmp_path, dtype="bfloat16"), prompts, temperature=0.0, num_logprobs=0)
    for name in ("0", "1"):
        first = [next(o for o in h.outputs if o.request_id == name) for h in (wide, narrow)]
        assert first[0].logprobs[0].logprobs[0] == pytest.approx(first[1].logprobs[0].logprobs[0], abs=0.3)


@pytest.mark.slow
def test_progress_is_reported_up_to_the_end(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    reports: list[tuple[int, int]] = []
    config = CoreConfig(model=ModelConfig(uri=f"file://{tmp_path}"), cache=CacheConfig(num_blocks=4))
    load_runner(config, lambda read, total: reports.append((read, total)))
    assert len(reports) >= 2
    assert reports == sorted(reports)
    assert reports[-1][0] == reports[-1][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Llama", {"attention_bias": True}, "o_proj.bias"),
        ("Llama", {"hidden_act": "gelu"}, "'gelu'"),
        (
            "Llama",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 2.0,
                    "rope_theta": 10000.0,
                }
            },
            "'yarn'",
        ),
        ("GPTNeoX", {}, "GPTNeoXForCausalLM"),
    ],
    ids=str,
)
def test_a_model_that_is_not_computed_right_is_refused_by_name(
    tmp_path: Path, family: str, changes: dict[str, object], message: str
) -> None:
    save_model(tmp_path, family, **changes)
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    assert message in caught.value.message
    assert caught.value.reason == "UnsupportedModel"


def test_the_cache_takes_no_memory_before_it_is_written() -> None:
    before = machine.used_memory_bytes()
    zeros = lazy_zeros((1 << 14, 1 << 14), torch.bfloat16)
    assert machine.used_memory_bytes() - before < zeros.nbytes // 10
    zeros[5, 7] = 1.0
    assert float(zeros[5].sum()) == 1.0
    assert lazy_zeros((0, 8), torch.bfloat16).shape == (0, 8)


@pytest.mark.slow
def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    save_model(tmp_path, "Mistral", sliding_window=24)
    assert load(tmp_path).info.max_model_len == 24


def test_a_directory_without_weights_or_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="safetensors"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ModelLoadError, match="broken"):
        load(tmp_path)
