"""What this CPU can do, and which compiler flags that allows. Reads /proc/cpuinfo; compiles nothing."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_AVX2 = ("avx2", "fma", "f16c")
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
_AVX512F = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512F_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
_AVX512 = (*_AVX512F, "avx512_vnni", "avx512_bf16")
_AVX512_FLAGS = (*_AVX512F_FLAGS, "-mavx512vnni", "-mavx512bf16")
_X86 = ("x86_64", "AMD64")
_ARM64 = ("aarch64", "arm64")
_NEON_DOT = ("asimd", "atomics", "asimddp")
# GCC's early scheduling moves loads so far ahead there that sums no longer fit the registers.
_NEON_FLAGS = ("-fno-schedule-insns",)


@dataclass(frozen=True, kw_only=True)
class KernelPath:
    """A way to compute: the CPU's features that it needs, as Linux names them, and the compiler's flags."""

    name: str
    machines: tuple[str, ...]
    features: tuple[str, ...]
    flags: tuple[str, ...]


PATHS = (
    KernelPath(
        name="amx",
        machines=_X86,
        features=(*_AVX512, "amx_tile", "amx_bf16", "amx_int8"),
        flags=(*_AVX512_FLAGS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    ),
    KernelPath(name="avx512", machines=_X86, features=_AVX512, flags=_AVX512_FLAGS),
    KernelPath(
        name="avx512vnni",
        machines=_X86,
        features=(*_AVX512F, "avx512_vnni"),
        flags=(*_AVX512F_FLAGS, "-mavx512vnni"),
    ),
    KernelPath(name="avx512f", machines=_X86, features=_AVX512F, flags=_AVX512F_FLAGS),
    KernelPath(
        name="avxvnni", machines=_X86, features=(*_AVX2, "avx_vnni"), flags=(*_AVX2_FLAGS, "-mavxvnni")
    ),
    KernelPath(name="avx2", machines=_X86, features=_AVX2, flags=_AVX2_FLAGS),
    KernelPath(
        name="neonbf16",
        machines=_ARM64,
        features=(*_NEON_DOT, "bf16"),
        flags=("-march=armv8.2-a+dotprod+bf16", *_NEON_FLAGS),
    ),
    KernelPath(
        name="neondot",
        machines=_ARM64,
        features=_NEON_DOT,
        flags=("-march=armv8.2-a+dotprod", *_NEON_FLAGS),
    ),
    KernelPath(name="neon", machines=_ARM64, features=("asimd",), flags=_NEON_FLAGS),
)
"""Fastest first."""


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the names of the first CPU's features; none where the file is missing."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, values = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(values.split())
    return frozenset()


def supported_paths(
    features: frozenset[str] | None = None, machine: str | None = None
) -> tuple[KernelPath, ...]:
    """Return the paths that this CPU can take, fastest first."""
    features = cpu_features() if features is None else features
    machine = platform.machine() if machine is None else machine
    return tuple(path for path in PATHS if machine in path.machines and features.issuperset(path.features))


def best_path(wanted: str = "auto") -> KernelPath | None:
    """Return the path of that name, or the fastest; None where this CPU can't take it."""
    return next((path for path in supported_paths() if wanted in {"auto", path.name}), None)
