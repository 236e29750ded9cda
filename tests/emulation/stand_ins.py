"""Kernel paths of other x86 CPUs, compiled for AVX2 with stand-ins for instructions that are missing here.

Knows which macro of `x86.h` stands for which instructions. What comes out runs in this process, slowly.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from tidemill_kernels.native.cpu import PATHS, KernelPath, supported_paths

_HEADER = Path(__file__).with_name("x86.h")
_MACROS = {
    "amx": ("AVX512F", "AVX512_VNNI", "AVX512_BF16", "AMX"),
    "avx512vnni": ("AVX512F", "AVX512_VNNI"),
    "avx512f": ("AVX512F",),
    "avxvnni": ("AVX_VNNI",),
}
"""The vectors of `avx512` are those of `amx`."""


def has_stand_ins(path: KernelPath) -> bool:
    return "-include" in path.flags


def paths_with_stand_ins() -> tuple[KernelPath, ...]:
    """Return the x86 paths that this CPU lacks; none where it has no AVX2, which they are made of."""
    own = {path.name: path for path in supported_paths()}
    if "avx2" not in own:
        return ()
    digest = hashlib.sha256(_HEADER.read_bytes()).hexdigest()[:16]
    common = (*own["avx2"].flags, "-O1", "-include", str(_HEADER), f"-DSTAND_INS={digest}")
    return tuple(
        replace(path, flags=(*common, *(f"-DEMULATE_{macro}" for macro in _MACROS[path.name])))
        for path in PATHS
        if path.name in _MACROS and path.name not in own
    )
