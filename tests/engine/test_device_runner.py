"""The runner for GPUs on the CPU, its kernels interpreted: the tokens of the CPU's runner, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from device_runners import load_on_host
from engine_builders import make_request
from late_device import LateDevice
from served_tokens import assert_same, entries, load_on_cpu, serve
from tidemill_engine.config import KvDtype
from tidemill_engine.runner.base import ModelRunner, RunnerLost
from tidemill_engine.runner.gpu import load, swap
from tidemill_engine.runner.gpu.runner import DeviceParts, DeviceRunner
from tidemill_engine.scheduler.seams import Seams
from tiny_models import prompts_of, save_model

pytestmark = pytest.mark.slow  # the interpreter takes its time

LENGTHS = (1, 3, 4, 5, 13, 29)


class SwapAlways:
    """Costs by which copying always pays."""

    def swap_seconds(self, num_blocks: int) -> float:
        return 0.0

    def recompute_seconds(self, num_tokens: int) -> float:
        return 1.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_model(path, "Llama", num_attention_heads=6, num_key_value_heads=2, hidden_size=48, head_dim=8)
    return path


@pytest.fixture(scope="module")
def cpu_runner(directory: Path) -> ModelRunner:
    return load_on_cpu(directory)


@pytest.fixture(scope="module")
def runner(directory: Path) -> DeviceRunner:
    return load_on_host(directory, swap_bytes=1 << 20)


@pytest.mark.parametrize(
    ("is_chunked_prefill", "max_model_len", "max_num_seqs", "lengths"),
    [
        (True, None, 8, [16]),
        (False, None, 8, [128]),
        (True, 6, 8, [6, 6, 4]),
        (True, 6, 2, [6, 6]),
    ],
)
def test_memory_is_tried_with_the_longest_step_without_chunks_the_longest_prompt(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_chunked_prefill: bool,
    max_model_len: int | None,
    max_num_seqs: int,
    lengths: list[int],
) -> None:
    tried: list[list[int]] = []
    profile = load._profile

    def watched(parts: DeviceParts, lengths: list[int], max_num_seqs: int) -> None:
        tried.append(lengths)
        if max_model_len is not None:
            profile(parts, lengths, max_num_seqs)

    monkeypatch.setattr(load, "_profile", watched)
    load_on_host(
        directory,
        is_chunked_prefill=is_chunked_prefill,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
    )
    assert tried == [lengths]


@pytest.mark.parametrize("depth", [1, 2])
def test_greedy_tokens_of_odd_prompts_are_those_of_the_cpu(
    runner: ModelRunner, cpu_runner: ModelRunner, depth: int
) -> None:
    prompts = prompts_of(*LENGTHS)
    found = serve(runner, prompts, depth=depth)
    assert any(1 in step.num_scheduled_tokens and step.num_tokens > len(step.rows) for step in found.steps)
    assert_same(found, serve(cpu_runner, prompts, depth=1), len(prompts))


def test_captured_decodes_give_the_same_tokens(directory: Path, cpu_runner: ModelRunner) -> None:
    prompts = prompts_of(*LENGTHS)
    found = serve(load_on_host(directory, has_graphs=True), prompts)
    sizes = {len(step.rows) for step in found.steps if step.num_tokens == len(step.rows)}
    assert sizes - {1, 2, 4, 8}, "no step was padded"
    assert_same(found, serve(cpu_runner, prompts, depth=1), len(prompts))


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Qwen2", {"tie_word_embeddings": True}), ("Qwen3", {"head_dim": 16, "num_key_value_heads": 1})],
)
def test_other_families_give_the_tokens_of_the_cpu(
    tmp_path: Path, family: str, changes: dict[str, object]
) -> None:
    save_model(tmp_path, family, **changes)
    prompts = prompts_of(3, 21)
    wanted = serve(load_on_cpu(tmp_path), prompts, depth=1)
    assert_same(serve(load_on_host(tmp_path), prompts), wanted, 2)


@pytest.mark.parametrize("way", ["swap", "recompute"])
def test_preempted_requests_get_the_same_tokens_however_late_copies_are(
    directory: Path, cpu_runner: ModelRunner, way: str
) -> None:
    prompts = prompts_of(9, 10, 11)
    seams = Seams(costs=SwapAlways()) if way == "swap" else None
    runner = load_on_host(directory, device=LateDevice(), swap_bytes=1 << 20)
    found = serve(runner, prompts, num_blocks=10, seams=seams, max_tokens=14)
    assert found.scheduler.stats().num_preemptions > 0
    assert any(len(step.swap_in) for step in found.steps) == (way == "swap")
    assert_same(found, serve(cpu_runner, prompts, depth=1, max_tokens=14), 3)


@pytest.mark.parametrize(
    ("error", "is_the_end"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True),
        (RuntimeError("a shape does not fit"), False),
    ],
)
def test_a_device_that_is_broken_ends_the_core_and_a_step_that_is_does_not(
    runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch, error: RuntimeError, *, is_the_end: bool
) -> None:
    def break_down(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(runner._compute, "logits", break_down)
    with pytest.raises(RunnerLost if is_the_end else RuntimeError, match=str(error)[-20:]):
        serve(runner, prompts_of(3))


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_a_narrow_cache_is_near_and_the_same_whatever_happens_to_its_blocks(
    directory: Path, runner: ModelRunner, kv_dtype: KvDtype
) -> None:
    prompts = prompts_of(9, 10, 11)
    narrow = load_on_host(directory, device=LateDevice(), swap_bytes=1 << 20, kv_dtype=kv_dtype)
    assert narrow.info.num_swap_blocks > 2 * runner.info.num_swap_blocks
    wanted = serve(narrow, prompts, max_tokens=14, depth=1)
    swapped = serve(narrow, prompts, num_blocks=10, seams=Seams(costs=SwapAlways()), max_tokens=14)
    assert any(len(step.swap_in) for step in swapped.steps)
    assert_same(swapped, wanted, 3)
    exact = serve(runner, prompts, max_tokens=14)
    for index in range(3):
        first, right = entries(wanted, str(index))[0], entries(exact, str(index))[0]
        assert abs(first.logprobs[0] - right.logprobs[0]) < {"int8": 0.1, "fp8": 0.4}[kv_dtype]
        assert first.logprobs != right.logprobs


def test_a_copy_that_fails_is_the_end(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load_on_host(directory, swap_bytes=1 << 20)

    def refuse(*_arguments: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room to gather blocks")

    monkeypatch.setattr(swap._Plane, "room", refuse)
    with pytest.raises(RunnerLost, match="no room to gather blocks"):
        serve(runner, prompts_of(9, 10, 11), num_blocks=10, seams=Seams(costs=SwapAlways()), max_tokens=14)


def test_a_found_prefix_changes_no_token(runner: ModelRunner, cpu_runner: ModelRunner) -> None:
    (prompt,) = prompts_of(29)
    harness = serve(runner, [prompt])
    harness.add(make_request("again", prompt=prompt, max_tokens=6, temperature=0.0, num_logprobs=2))
    harness.run()
    first = next(output for output in harness.outputs if output.request_id == "again")
    assert first.num_cached_tokens == 28
    assert harness.tokens("again") == harness.tokens("0") == serve(cpu_runner, [prompt]).tokens("0")


def test_seeds_decide_what_is_drawn_alone_and_in_a_batch(runner: ModelRunner) -> None:
    prompts = prompts_of(5, 5, 7)
    sampling: dict[str, Any] = {"temperature": 1.5, "num_logprobs": None, "top_k": 40, "top_p": 0.95}
    together = serve(runner, [prompts[0], prompts[0], prompts[2]], max_tokens=5, **sampling)
    alone = serve(runner, [prompts[0]], max_tokens=5, **sampling)
    assert alone.tokens("0") == together.tokens("0") != together.tokens("1")


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"logit_bias": {7: 30.0, 11: -100.0}},
        {"min_tokens": 5, "stop_token_ids": tuple(range(2, 90))},
    ],
    ids=lambda params: next(iter(params)),
)
def test_penalties_and_bias_choose_the_tokens_of_the_cpu(
    runner: ModelRunner, cpu_runner: ModelRunner, params: dict[str, Any]
) -> None:
    prompts = prompts_of(4, 17)
    found, wanted = (serve(r, prompts, depth=1, max_tokens=8, **params) for r in (runner, cpu_runner))
    plain = serve(cpu_runner, prompts, depth=1, max_tokens=8)
    assert [found.tokens(str(i)) for i in range(2)] == [wanted.tokens(str(i)) for i in range(2)]
    assert any(wanted.tokens(str(i)) != plain.tokens(str(i)) for i in range(2))
