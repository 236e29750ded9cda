"""Measures what this machine can do at best: linear layers by every path there is, memory bandwidth, peak.

Knows torch and, where they can be had, our own kernels. Minima of several repeats, since others may be busy.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tidemill_bench.race.contender import Precision
from tidemill_bench.smollm2 import VOCAB_SIZE
from tidemill_bench.step.native_floor import NativeFloor
from tidemill_bench.step.roofline import CHUNK_TOKENS, MachineFloor
from tidemill_kernels.linear import PackedLinear, can_pack

ROWS = (1, 4, 16, 64, 128, 512)
_NUM_LAYERS = 30
_LAYER_MATRICES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""SmolLM2-135M: qkv, out, gate and up, down; (outputs, inputs)."""
_HEAD = (VOCAB_SIZE, 576)
_MOST_HEAD_ROWS = 128
_REPEATS = 4
_BANDWIDTH_BYTES = 1 << 29
_BANDWIDTH_PARTS = 4
_BANDWIDTH_ROUNDS = 8
_LAYER_COPIES = 30
"""Weights must not stay in the cache between layers, since they do not in a model."""

Product = Callable[[torch.Tensor], torch.Tensor]


def measure_machine() -> MachineFloor:
    """Measure every floor; about half a minute on a quiet machine."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    layer_seconds: dict[int, float] = {}
    head_seconds: dict[int, float] = {}
    best_paths: dict[int, str] = {}
    with torch.inference_mode():
        layers = {name: _layers(make) for name, make in _paths().items()}
        heads = {name: [make(_weight(_HEAD))] for name, make in _paths().items()}
        native = NativeFloor.open()
        for rows in ROWS:
            by_path = {name: _time_layers(products, rows) for name, products in layers.items()}
            if native is not None:
                by_path["our kernels"] = native.layers(rows)
            best_paths[rows] = min(by_path, key=lambda name: by_path[name])
            layer_seconds[rows] = by_path[best_paths[rows]]
            if rows <= _MOST_HEAD_ROWS:
                x = torch.randn(rows, _HEAD[1], dtype=torch.bfloat16)
                times = [_least(lambda p=p, x=x: p(x)) for (p,) in heads.values()]  # type: ignore[misc]
                head_seconds[rows] = min([*times, *([native.head(rows)] if native is not None else [])])
    flop = 2 * CHUNK_TOKENS * _NUM_LAYERS * sum(outputs * inputs for outputs, inputs in _LAYER_MATRICES)
    return MachineFloor(
        layer_seconds=layer_seconds,
        head_seconds=head_seconds,
        bytes_per_second=_bandwidth(),
        flop_per_second=flop / layer_seconds[CHUNK_TOKENS],
        best_paths=best_paths,
    )


def quantized_floor(floor: MachineFloor, precision: Precision) -> MachineFloor | None:
    """Return a machine's floor with matrices of this precision, which only our kernels have, or None.

    Attention, keys and values stay as they are: they are bfloat16 there, too.
    """
    native = NativeFloor.open(precision)
    if native is None:
        return None
    return replace(
        floor,
        layer_seconds={rows: native.layers(rows) for rows in ROWS},
        head_seconds={rows: native.head(rows) for rows in ROWS if rows <= _MOST_HEAD_ROWS},
        best_paths=dict.fromkeys(ROWS, "our kernels"),
    )


def describe() -> str:
    """Return the machine in a line: CPU, cores, matrix features, load."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    features = [
        name for name in ("avx2", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8") if name in info
    ]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
        f"{' '.join(features)}; torch {torch.__version__}; load {load}"
    )


def _paths() -> dict[str, Callable[[torch.Tensor], Product]]:
    """Return how torch multiplies here at its best."""
    if can_pack(torch.bfloat16):
        return {"torch, packed": PackedLinear}
    return {"torch": lambda weight: lambda x: torch.nn.functional.linear(x, weight)}


def _weight(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def _layers(make: Callable[[torch.Tensor], Product]) -> list[Product]:
    """Return the matrices of all layers."""
    return [make(_weight(shape)) for _ in range(_LAYER_COPIES) for shape in _LAYER_MATRICES]


def _time_layers(products: list[Product], rows: int) -> float:
    inputs = {size: torch.randn(rows, size, dtype=torch.bfloat16) for size in {s for _, s in _LAYER_MATRICES}}
    sizes = [size for _, size in _LAYER_MATRICES] * _LAYER_COPIES

    def run() -> None:
        for product, size in zip(products, sizes, strict=True):
            product(inputs[size])

    return _least(run)


def _bandwidth(num_bytes: int = _BANDWIDTH_BYTES) -> float:
    """Return the bytes a second that all cores read together.

    The best of many parts, each larger than the last cache and read in a few milliseconds: another program
    that takes a core for a moment spoils one part, not all.
    """
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)  # as the kernels' own memory
    numbers = torch.frombuffer(memory, dtype=torch.float32).fill_(1.0)
    parts = numbers.chunk(_BANDWIDTH_PARTS)
    seconds = min(_seconds(part.sum) for _ in range(_BANDWIDTH_ROUNDS) for part in parts)
    return num_bytes / _BANDWIDTH_PARTS / seconds


def _least(run: Callable[[], object]) -> float:
    """Return the least seconds of several runs."""
    run()
    return min(_seconds(run) for _ in range(_REPEATS))


def _seconds(run: Callable[[], object]) -> float:
    """Return the seconds of one run."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
