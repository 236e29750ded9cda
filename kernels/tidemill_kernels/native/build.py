"""Compiles the library of one path, once: found ready in the package, found in a cache, or built into it.

A library's name is a digest of sources, flags and path, so no version loads another's library. Several
processes may build at once: one does, the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_kernels.native.cpu import KernelPath

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
PREBUILT = Path(__file__).parent / "prebuilt"
FLAGS = ("-std=gnu++17", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_SECONDS = 300


class CompilerMissingError(RuntimeError):
    """There is neither a library nor a compiler that could make one; the message says what was looked for."""


def default_cache() -> Path:
    """Return where libraries are kept: $TIDEMILL_CACHE, else the home directory's cache."""
    return Path(os.environ.get("TIDEMILL_CACHE") or Path.home() / ".cache" / "tidemill") / "kernels"


def find_library(path: KernelPath, cache: Path | None = None) -> Path:
    """Return the path's shared library, compiling it if need be."""
    name = library_name(path)
    cache = default_cache() if cache is None else cache
    for directory in (PREBUILT, cache):
        if (directory / name).exists():
            return directory / name
    return build_library(path, cache / name)


def build_library(path: KernelPath, target: Path) -> Path:
    """Compile the path's library to `target`, which appears whole or not at all."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise CompilerMissingError(f"no C++ compiler was found (looked for {', '.join(COMPILERS)})")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f"{target.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _compile(compiler, path, target)
    except OSError as error:
        raise CompilerMissingError(f"{target.parent} can't be written: {error.strerror}") from error
    return target


def _compile(compiler: str, path: KernelPath, target: Path) -> None:
    """Run the compiler into a temporary file and move it into place."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        output = Path(directory) / target.name
        command = [compiler, *FLAGS, *path.flags, str(SOURCES / "api.cpp"), "-o", str(output)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
        except subprocess.CalledProcessError as error:
            raise CompilerMissingError(
                f"{compiler} failed on the {path.name} kernels: {error.stderr[-2000:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise CompilerMissingError(f"{compiler} took over {_TIMEOUT_SECONDS} s") from error
        output.replace(target)
    logger.info("compiled the %s kernels in %.1f s: %s", path.name, time.monotonic() - started, target)


def library_name(path: KernelPath) -> str:
    """Return the file's name, which says what it was made of: every source, the flags, the path."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update(" ".join((path.name, *FLAGS, *path.flags)).encode())
    return f"tidemill-{path.name}-{digest.hexdigest()[:16]}.so"
