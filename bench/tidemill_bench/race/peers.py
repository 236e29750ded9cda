"""The contenders: how each is set up, in which configurations it may run, and how it is started.

Knows command lines and environments of other engines. Each peer has a folder of its own in the cache; what is
there already is used again. A peer that can't be set up raises SetupError and the race goes on without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tidemill_bench.race.contender import Precision, our_name
from tidemill_bench.race.installing import build_llama_cpp, install_transformers, install_vllm_cpu
from tidemill_bench.race.models import MODEL, gguf_file, huggingface_folder
from tidemill_bench.race.server import ServerCommand

MAX_MODEL_LEN = 8192
NUM_SLOTS = 64
_FEW_SLOTS = 16
_LLAMA_CONTEXT_TOKENS = 98_304
_VLLM_CACHE_GIB = "3"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One way to run a contender: a server on the given port, or a script that reads runs from its input."""

    label: str
    command: Callable[[int], ServerCommand]
    is_script: bool = False


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One engine at one precision; `prepare` installs what it needs and returns its configurations."""

    name: str
    precision: Precision
    prepare: Callable[[Path], tuple[Configuration, ...]]


def contenders() -> list[Contender]:
    """Return everyone: ours at each precision, then the peers."""
    return [
        ours("bf16"),
        ours("int8"),
        ours("int4"),
        Contender(name="vllm-cpu", precision="bf16", prepare=_vllm_cpu),
        _llama_cpp("llama.cpp", "int8"),
        _llama_cpp("llama.cpp Q4_0", "int4"),
        _transformers("transformers continuous", "continuous"),
        _transformers("transformers static", "static"),
    ]


def ours(precision: Precision) -> Contender:
    """Return our engine, as a user would start it."""

    def command(port: int) -> ServerCommand:
        argv = [sys.executable, "-m", "tidemill_engine", "serve", f"builtin://{MODEL}"]
        argv += ["--port", str(port), "--admin-port", str(port + 500)]
        if precision != "bf16":
            argv += ["--quantization", precision]
        return ServerCommand(argv=tuple(argv), ready_path="/health/ready")

    return Contender(
        name=our_name(precision),
        precision=precision,
        prepare=lambda _cache: (Configuration(label="default", command=command),),
    )


def _vllm_cpu(cache: Path) -> tuple[Configuration, ...]:
    """Return vllm-cpu with one OpenMP thread and with one for each core."""
    folder = install_vllm_cpu(cache)
    model = huggingface_folder(cache)
    cores = sorted(os.sched_getaffinity(0))
    bindings = {f"{len(cores)} threads": f"{cores[0]}-{cores[-1]}", "1 thread": str(cores[-1])}
    openmp = sorted(folder.rglob("libiomp5.so"))

    def configuration(label: str, binding: str) -> Configuration:
        environment = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": _VLLM_CACHE_GIB,
            "VLLM_CPU_OMP_THREADS_BIND": binding,
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_TARGET_DEVICE": "cpu",
        }
        if openmp:
            environment["LD_PRELOAD"] = str(openmp[0].resolve())
        argv = (str(folder / "bin" / "vllm"), "serve", str(model), "--served-model-name", MODEL)
        flags = ("--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "256")
        return Configuration(
            label=label,
            command=lambda port: ServerCommand(
                argv=(*argv, *flags, "--port", str(port)), environment=environment, ready_seconds=900.0
            ),
        )

    return tuple(configuration(label, binding) for label, binding in bindings.items())


def _llama_cpp(name: str, precision: Precision) -> Contender:
    """Return llama.cpp's server on weights comparable to ours at that precision."""

    def prepare(cache: Path) -> tuple[Configuration, ...]:
        binary = build_llama_cpp(cache)
        model = gguf_file(cache, "Q8_0" if precision == "int8" else "Q4_0")
        num_cores = len(os.sched_getaffinity(0))

        def configuration(label: str, *flags: str, num_slots: int = NUM_SLOTS) -> Configuration:
            argv = (str(binary), "--model", str(model), "--alias", MODEL, "--no-webui", "--offline")
            slots = ("--parallel", str(num_slots), "--kv-unified", "--ctx-size", str(_LLAMA_CONTEXT_TOKENS))
            return Configuration(
                label=label,
                command=lambda port: ServerCommand(
                    argv=(*argv, *slots, *flags, "--port", str(port)), ready_path="/health"
                ),
            )

        return (
            configuration(f"{num_cores} threads", "--threads", str(num_cores)),
            configuration(
                f"{num_cores} threads, no flash attention",
                *("--threads", str(num_cores), "--flash-attn", "off"),
            ),
            configuration(
                f"{num_cores} threads, {_FEW_SLOTS} slots", "--threads", str(num_cores), num_slots=_FEW_SLOTS
            ),
        )

    return Contender(name=name, precision=precision, prepare=prepare)


def _transformers(name: str, mode: str) -> Contender:
    """Return transformers in this mode, fed by a script: it is timed without HTTP."""

    def prepare(cache: Path) -> tuple[Configuration, ...]:
        python = install_transformers(cache)
        model = huggingface_folder(cache)
        script = str(resources.files("tidemill_bench") / "race" / "transformers_probe.py")
        num_cores = len(os.sched_getaffinity(0))

        def configuration(num_threads: int) -> Configuration:
            argv = (str(python), "-I", script, str(model), mode, str(num_threads))
            return Configuration(
                label=f"{num_threads} threads" if num_threads > 1 else "1 thread",
                command=lambda _port: ServerCommand(argv=argv, environment={"HF_HUB_OFFLINE": "1"}),
                is_script=True,
            )

        return tuple(configuration(count) for count in dict.fromkeys((num_cores, 1)))

    return Contender(name=name, precision="bf16", prepare=prepare)
