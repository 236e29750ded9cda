"""Splits the steps of the real engine, in this process: kernels by kind, and what Python adds.

Knows the runner's own timers where it has them (the C++ kernels), and else wraps the functions that the torch
model calls. Times are wall times of each part; what no part accounts for is Python.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.core.engine import EngineCore
from tidemill_engine.core.process import make_engine
from tidemill_engine.ipc import FrameDecoder, encode_frame
from tidemill_engine.messages import CoreFrame, EngineRequest, SamplingParams
from tidemill_engine.models import llama
from tidemill_engine.runner.load import load_runner
from tidemill_kernels.linear import PackedLinear

_TORCH_FUNCTIONS = {
    "rms_norm": "norm",
    "apply_rope": "rope, KV write",
    "store_kv": "rope, KV write",
    "paged_attention": "attention",
    "silu_mul": "other kernels",
}
_NATIVE_SECTIONS = {
    "embed": "other kernels",
    "norm": "norm",
    "qkv": "linears",
    "rope": "rope, KV write",
    "attention": "attention",
    "out": "linears",
    "gate_up": "linears",
    "down": "linears",
    "head": "linears",
}
_BLOCK_SIZE = 32
# Prompts are computed beside decoding requests, at worst in chunks of this size.
_LEAST_CHUNK_TOKENS = 32
_SPARE_STEPS = 8
_FIRST_TOKEN = 1000


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """Mean seconds of one decoding step, by part; `ipc` is encoding and decoding its frame."""

    num_rows: int
    context: int
    parts: dict[str, float]
    total: float
    ipc: float


def split_step(uri: str, num_rows: int, context: int, num_steps: int) -> StepSplit:
    """Let so many requests decode at about that context and split their steps."""
    num_outputs = num_steps + -(-num_rows * context // _LEAST_CHUNK_TOKENS) + _SPARE_STEPS
    engine, runner = _engine(uri, num_rows, context + num_outputs)
    parts: defaultdict[str, float] = defaultdict(float)
    totals: list[float] = []
    ipc = 0.0
    decoder = FrameDecoder(CoreFrame)
    with _timed_kernels(runner, parts):
        _fill(engine, num_rows, context, num_outputs)
        while len(totals) < num_steps:
            began = time.perf_counter()
            output = engine.schedule()
            scheduled = time.perf_counter()
            if output is None:
                raise RuntimeError("requests ended before the steps were measured")
            is_decoding = output.num_tokens == num_rows == len(output.rows)
            if not totals:
                _take_native(runner)
                parts.clear()
            report = engine.run(output)
            ended = time.perf_counter()
            if not is_decoding:
                continue
            parts["scheduling"] += scheduled - began + (ended - scheduled - report.seconds)
            totals.append(ended - began)
            began = time.perf_counter()
            decoder.feed(encode_frame(CoreFrame(messages=report.outputs.messages())))
            ipc += time.perf_counter() - began
    for name, seconds in _take_native(runner).items():
        parts[_NATIVE_SECTIONS[name]] += seconds
    mean = {name: seconds / num_steps for name, seconds in parts.items()}
    total = sum(totals) / num_steps
    mean["Python"] = total - sum(mean.values())
    return StepSplit(num_rows=num_rows, context=context, parts=mean, total=total, ipc=ipc / num_steps)


def _engine(uri: str, num_rows: int, max_len: int) -> tuple[EngineCore, Any]:
    config = CoreConfig(
        model=ModelConfig(uri=uri, max_model_len=max_len),
        cache=CacheConfig(num_blocks=num_rows * (-(-max_len // _BLOCK_SIZE) + 1)),
        scheduler=SchedulerConfig(max_num_seqs=num_rows),
    )
    runner = load_runner(config, lambda _read, _total: None)
    return make_engine(config, runner), runner


def _fill(engine: EngineCore, num_rows: int, context: int, num_outputs: int) -> None:
    """Add the requests; their prompts differ from the first token on."""
    for index in range(num_rows):
        prompt = [_FIRST_TOKEN + (index * 61 + place * 7) % 40_000 for place in range(context)]
        refused = engine.add(
            EngineRequest(
                request_id=str(index),
                handle=index,
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=num_outputs, temperature=0.0, ignore_eos=True),
                arrival_time=time.monotonic(),
            )
        )
        if refused is not None:
            raise RuntimeError(f"the engine refused a request: {refused.error}")


@contextmanager
def _timed_kernels(runner: Any, parts: dict[str, float]) -> Iterator[None]:
    """Time the torch model's functions; the C++ kernels time themselves."""
    if hasattr(getattr(runner, "engine", None), "take_times"):
        yield
        return
    originals = {name: getattr(llama, name) for name in _TORCH_FUNCTIONS}
    product = PackedLinear.__call__
    for name, part in _TORCH_FUNCTIONS.items():
        setattr(llama, name, _timed(originals[name], part, parts))
    PackedLinear.__call__ = _timed(product, "linears", parts)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(llama, name, original)
        PackedLinear.__call__ = product  # type: ignore[method-assign]


def _timed(function: Callable[..., Any], part: str, parts: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            parts[part] += time.perf_counter() - began

    return timed


def _take_native(runner: Any) -> dict[str, float]:
    """Return what the C++ kernels have measured since the last time."""
    take_times = getattr(getattr(runner, "engine", None), "take_times", None)
    return {} if take_times is None else dict(take_times())
