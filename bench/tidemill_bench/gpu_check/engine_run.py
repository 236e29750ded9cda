"""Our engine's core on the device with random weights: throughput by number of requests, and a step split."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType

from tidemill_bench.gpu_check.place import Place
from tidemill_bench.gpu_check.random_model import LLAMA_8B, TINY, RandomWeights, num_weight_bytes
from tidemill_engine.config import CacheConfig, CoreConfig, DeviceConfig, ModelConfig, SchedulerConfig
from tidemill_engine.core.process import make_engine
from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.models.config import LlamaConfig
from tidemill_engine.parallel.group import Alone
from tidemill_engine.runner.gpu.load import load_device_runner
from tidemill_engine.step import SchedulerOutput

_KINDS = (
    ("attention", ("paged_attention", "merge_parts")),
    ("norms", ("add_rms_norm",)),
    ("rotation, KV write", ("rope_kv_write",)),
    ("gate", ("silu_mul",)),
    ("sampling", ("sample_kernel",)),
    ("products", ("gemm", "nvjet", "cutlass", "cublas", "xmma", "addmm", "aten::mm")),
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is served: so many requests at once, each of so many prompt and output tokens."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Served:
    """Served from the first arrival to the last token; decode_seconds: the median step without prompts.

    limit_fraction: the time to read all weights once, by the measured peak, over decode_seconds.
    """

    workload: Workload
    seconds: float
    output_tokens_per_second: float
    decode_seconds: float
    limit_fraction: float


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """A decode step of so many rows: its time, its kernels' times by kind, and the share without a kernel."""

    num_rows: int
    step_seconds: float
    parts: dict[str, float]
    idle_share: float


class EngineRun:
    """One loaded engine, asked for several workloads in turn."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.model = TINY if place.is_rehearsal else LLAMA_8B
        config = _config(place)
        runner = load_device_runner(
            RandomWeights(self.model), config, place.device, Alone(), lambda _read, _total: None
        )
        self._core = make_engine(config, runner)
        self._num_added = 0

    def serve(self, workload: Workload) -> Served:
        """Serve a workload from an empty engine."""
        self._add(workload)
        core, decodes, began = self._core, [], time.monotonic()
        while core.has_work():
            output = core.schedule()
            is_decode = output is not None and _is_decode(output, workload.num_requests)
            report = core.advance(output)
            if report is not None and is_decode:
                decodes.append(report.seconds)
        seconds = time.monotonic() - began
        decode = float(np.median(decodes)) if decodes else float("nan")
        weights = num_weight_bytes(self.model, self._place.dtype.itemsize)
        return Served(
            workload=workload,
            seconds=seconds,
            output_tokens_per_second=workload.num_requests * workload.output_tokens / seconds,
            decode_seconds=decode,
            limit_fraction=weights / self._place.copy_bytes_per_second / decode,
        )

    def split(self, num_rows: int, num_steps: int) -> StepSplit:
        """Let so many requests decode; time steps without a profiler, then split others with it."""
        workload = workloads_of(self._place)[-1]
        self._add(
            Workload(
                num_requests=num_rows,
                prompt_tokens=workload.prompt_tokens,
                output_tokens=4 * num_steps + workload.prompt_tokens,
            )
        )
        while (output := self._core.schedule()) is None or not _is_decode(output, num_rows):
            self._core.advance(output)
        self._core.advance(output)
        began = time.monotonic()
        self._steps(num_steps)
        step_seconds = (time.monotonic() - began) / num_steps
        with torch.profiler.profile() as profile:
            self._steps(num_steps)
        parts = {kind: total / num_steps for kind, total in self._kernels(profile).items()}
        for index in range(self._num_added - num_rows, self._num_added):
            self._core.abort(str(index))
        while self._core.has_work():
            self._core.advance(self._core.schedule())
        return StepSplit(
            num_rows=num_rows,
            step_seconds=step_seconds,
            parts=parts,
            idle_share=max(0.0, 1 - sum(parts.values()) / step_seconds),
        )

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._core.advance(self._core.schedule())

    def _add(self, workload: Workload) -> None:
        generator = np.random.default_rng(self._num_added)
        for _ in range(workload.num_requests):
            number, self._num_added = self._num_added, self._num_added + 1
            refused = self._core.add(_request(number, workload, self.model, generator))
            if refused is not None:
                raise RuntimeError(f"the engine refused a request: {refused.error}")

    def _kernels(self, profile: Any) -> dict[str, float]:
        """Return seconds by kind of kernel; in a rehearsal those of torch's operators on the CPU."""
        is_gpu = not self._place.is_rehearsal
        wanted = DeviceType.CUDA if is_gpu else DeviceType.CPU
        found = dict.fromkeys((*(kind for kind, _ in _KINDS), "others"), 0.0)
        for event in profile.key_averages():
            if event.device_type == wanted:
                time_us = event.self_device_time_total if is_gpu else event.self_cpu_time_total
                found[_kind_of(event.key)] += time_us / 1e6
        return found


def workloads_of(place: Place) -> list[Workload]:
    """Return what is asked for: 1, 64, 256 and 1,024 requests; two small ones in a rehearsal."""
    if place.is_rehearsal:
        return [Workload(num_requests=n, prompt_tokens=5, output_tokens=4) for n in (1, 3)]
    return [Workload(num_requests=n, prompt_tokens=512, output_tokens=128) for n in (1, 64, 256, 1024)]


def _is_decode(output: SchedulerOutput, num_rows: int) -> bool:
    return output.num_tokens == len(output.rows) == num_rows


def _kind_of(kernel: str) -> str:
    """Return what a kernel is part of, by its name."""
    return next((kind for kind, marks in _KINDS if any(mark in kernel for mark in marks)), "others")


def _config(place: Place) -> CoreConfig:
    if place.is_rehearsal:
        return CoreConfig(
            model=ModelConfig(uri="random://tiny", dtype="float32", max_model_len=64),
            cache=CacheConfig(block_size=16, num_blocks=32),
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16),
        )
    return CoreConfig(
        model=ModelConfig(uri="random://llama-3.1-8b", max_model_len=8192),
        cache=CacheConfig(block_size=16, is_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=1024, max_num_batched_tokens=4096),
        device=DeviceConfig(),
    )


def _request(
    number: int, workload: Workload, model: LlamaConfig, generator: np.random.Generator
) -> EngineRequest:
    prompt = generator.integers(0, model.vocab_size, workload.prompt_tokens).tolist()
    return EngineRequest(
        request_id=str(number),
        handle=number,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=workload.output_tokens, temperature=0.0, ignore_eos=True),
        arrival_time=time.monotonic(),
    )
