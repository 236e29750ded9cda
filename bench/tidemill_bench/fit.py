"""Measures steps of the real CPU runner over a grid and fits the step-time model to them.

Runs the runner in this process with hand-made steps: no scheduler, no HTTP. On one core and in CPU time, so
that other programs on the machine don't count. Needs the model, and torch where there are no C++ kernels.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_bench.scheduler_cost import one_core
from tidemill_bench.step_time import Measurement, StepTime, fit
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.messages import SamplingParams
from tidemill_engine.runner.load import load_runner
from tidemill_engine.runner.native_cpu import find_kernels
from tidemill_engine.scheduler.step_model import features_of
from tidemill_engine.step import BlockAppends, NewRow, SchedulerOutput, int_array

if TYPE_CHECKING:
    from tidemill_engine.runner.base import ModelRunner

_MAX_ROWS = 129
_BLOCK_SIZE = 32
_TOKEN_ID = 1000
DECODE_GRID = (
    *((batch, context) for batch in (1, 4, 16, 32, 64) for context in (64, 512, 1024)),
    (128, 64),
    (128, 512),
)
CHUNK_GRID = tuple((chunk, start) for chunk in (32, 128, 512) for start in (0, 512, 2048))
MIXED_GRID = ((8, 256, 128), (16, 256, 256), (32, 512, 128), (32, 512, 480), (64, 256, 256))


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """One step to measure: `num_decodes` rows at `context`, and one prompt's chunk if it has tokens."""

    num_decodes: int = 0
    context: int = 0
    chunk: int = 0
    chunk_start: int = 0


def measure_and_fit(model_uri: str, repeats: int, note: str = "") -> tuple[StepTime, list[Measurement]]:
    """Load the model, measure the grid, fit."""
    config = _config(model_uri)
    with one_core():
        runner = load_runner(config, lambda _read, _total: None)
        measurements = [measure(runner, shape, repeats) for shape in grid()]
    provenance = {
        "model": model_uri,
        "dtype": runner.info.dtype,
        "machine": f"{cpu_name()}, {_kernels(config)}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "method": f"tidemill-bench fit: median CPU time of {repeats} steps "
        f"for each of {len(measurements)} kinds, on one core",
        "note": note,
    }
    return fit(measurements, provenance), measurements


def grid() -> Iterator[StepShape]:
    """Yield the kinds of step: decodes alone, a chunk alone, both together."""
    for batch, context in DECODE_GRID:
        yield StepShape(num_decodes=batch, context=context)
    for chunk, start in CHUNK_GRID:
        yield StepShape(chunk=chunk, chunk_start=start)
    for batch, context, chunk in MIXED_GRID:
        yield StepShape(num_decodes=batch, context=context, chunk=chunk)


def measure(runner: ModelRunner, shape: StepShape, repeats: int) -> Measurement:
    """Run one kind of step several times and take the median; one run before it is not counted."""
    seconds = []
    for repeat in range(repeats + 1):
        output = make_step(shape, repeat)
        started = time.process_time()
        runner.launch(output)
        runner.sample(None)
        if repeat:
            seconds.append(time.process_time() - started)
    return Measurement(features=features_of(output), seconds=statistics.median(seconds))


def make_step(shape: StepShape, step_id: int) -> SchedulerOutput:
    """Make a step whose rows have taken their blocks already; block contents don't matter for time."""
    starts = [shape.context - 1] * shape.num_decodes
    counts = [1] * shape.num_decodes
    if shape.chunk:
        starts.append(shape.chunk_start)
        counts.append(shape.chunk)
    rows = np.arange(len(counts), dtype=np.int32)
    lengths = int_array(starts) + int_array(counts)
    blocks = -(-lengths // _BLOCK_SIZE)
    owners = np.repeat(rows, blocks)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in blocks])
    return SchedulerOutput(
        step_id=step_id,
        rows=rows,
        num_scheduled_tokens=int_array(counts),
        num_draft_tokens=np.zeros_like(rows),
        start_pos=int_array(starts),
        adapter_slot=np.zeros_like(rows),
        logit_rows=int_array(np.cumsum(counts) - 1),
        new_rows=tuple(_new_row(int(row), int(length)) for row, length in zip(rows, lengths, strict=True)),
        block_appends=BlockAppends(
            rows=owners, positions=positions, block_ids=np.arange(len(owners), dtype=np.int32)
        ),
    )


def _new_row(row: int, length: int) -> NewRow:
    return NewRow(
        row=row,
        token_ids=np.full(length, _TOKEN_ID, dtype=np.int32),
        num_prompt_tokens=length,
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
        seed=0,
    )


def _config(model_uri: str) -> CoreConfig:
    longest = max(context for _, context in DECODE_GRID)
    return CoreConfig(
        model=ModelConfig(uri=model_uri, max_model_len=4096),
        cache=CacheConfig(num_blocks=_MAX_ROWS * (longest // _BLOCK_SIZE) + 128, block_size=_BLOCK_SIZE),
        scheduler=SchedulerConfig(max_num_seqs=_MAX_ROWS, max_num_batched_tokens=512),
    )


def _kernels(config: CoreConfig) -> str:
    """Return what computes."""
    library = find_kernels(config)
    if library is not None:
        return f"C++ kernels ({library.name.split('-')[1]})"
    import torch  # noqa: PLC0415 - heavy, and only needed here

    return f"torch {torch.__version__}"


def cpu_name() -> str:
    """Return what the processor calls itself."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a stream of lines
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
