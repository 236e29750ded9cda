"""The kernels' paths that can be tested here: those of this CPU, those of other x86 CPUs with stand-ins for
what is missing, and those of another kind in an emulator.

Emulated tests are slow. They show what instructions compute, not in which order another CPU's threads would
see one another's writes: here they see them in this CPU's order.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, cast

import pytest
from harness.session import refuse

from emulation.guest import prepare
from emulation.library import EmulatedLibrary
from emulation.stand_ins import paths_with_stand_ins
from tidemill_kernels.native.build import find_library
from tidemill_kernels.native.cpu import PATHS, KernelPath, supported_paths
from tidemill_kernels.native.library import load_library


class Extent(IntEnum):
    """Which tests a path takes, each with those before it."""

    WHOLE_NUMBERS = 1
    PRODUCTS = 2
    ALL = 3


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """The oldest CPU that can take a path, as the emulator names it, and what of the path is its own."""

    cpu: str
    extent: Extent


EMULATIONS = {
    "neon": Emulation(cpu="cortex-a57", extent=Extent.ALL),
    "neondot": Emulation(cpu="neoverse-n1", extent=Extent.WHOLE_NUMBERS),
    "neonbf16": Emulation(cpu="max", extent=Extent.PRODUCTS),
}
STAND_INS = {
    "amx": Extent.ALL,
    "avx512vnni": Extent.WHOLE_NUMBERS,
    "avx512f": Extent.ALL,
    "avxvnni": Extent.WHOLE_NUMBERS,
}
"""What of an x86 path is its own: `avx512vnni` has the vectors of `avx512f`, `avxvnni` those of `avx2`."""


def is_emulated(path: KernelPath) -> bool:
    """Say whether a path is of another kind of machine and can be run all the same."""
    return path.name in EMULATIONS and platform.machine() not in path.machines


@cache
def library_of(path: KernelPath) -> ctypes.CDLL:
    """Load a path's library, or what stands in for it; skip or fail the test where neither can be had."""
    if not is_emulated(path):
        return load_library(find_library(path))
    prepared = prepare(path)
    if prepared.program is None:
        refuse(prepared.missing, lacking="emulator")
    return cast("ctypes.CDLL", EmulatedLibrary(prepared.program, EMULATIONS[path.name].cpu))


def _tested(extent: Extent) -> list[tuple[str, KernelPath, Any]]:
    """Name the paths that take such tests; all but the CPU's best are slow."""
    best, *lesser = supported_paths() or (None,)
    own = (
        []
        if best is None
        else [(best.name, best, ()), *((path.name, path, pytest.mark.slow) for path in lesser)]
    )
    stand_ins = (path for path in paths_with_stand_ins() if STAND_INS[path.name] >= extent)
    others = (path for path in PATHS if is_emulated(path) and EMULATIONS[path.name].extent >= extent)
    emulated = (*stand_ins, *others)
    return [*own, *((f"{path.name}_emulated", path, pytest.mark.slow) for path in emulated)]


def _ways(extent: Extent) -> list[Any]:
    """List the paths, with vectors each and with tiles where there are any."""
    return [
        pytest.param(path, with_tiles, id=f"{name}-{'tiles' if with_tiles else 'vectors'}", marks=marks)
        for name, path, marks in _tested(extent)
        for with_tiles in (False, True)
        if path.name == "amx" or not with_tiles
    ]


each_way = pytest.mark.parametrize(("path", "with_tiles"), _ways(Extent.ALL))
each_way_of_products = pytest.mark.parametrize(("path", "with_tiles"), _ways(Extent.PRODUCTS))
each_way_of_whole_numbers = pytest.mark.parametrize(("path", "with_tiles"), _ways(Extent.WHOLE_NUMBERS))
paths = [pytest.param(path, id=name, marks=marks) for name, path, marks in _tested(Extent.ALL)]
each_path = pytest.mark.parametrize("path", paths)
