"""Which kernels a CPU gets: feature lists as Linux names them, of CPUs that are in use."""

from __future__ import annotations

import pytest

from tidemill_kernels.native.cpu import PATHS, supported_paths

_HASWELL = frozenset({"avx", "avx2", "fma", "f16c"})
_SKYLAKE = _HASWELL | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
_ICE_LAKE = _SKYLAKE | {"avx512_vnni", "avx512_vbmi2"}
_ZEN_4 = _ICE_LAKE | {"avx512_bf16"}
_CORTEX_A72 = frozenset({"fp", "asimd", "crc32"})
_NEOVERSE_N1 = _CORTEX_A72 | {"atomics", "asimdhp", "asimddp"}
_NEOVERSE_V1 = _NEOVERSE_N1 | {"sve", "i8mm", "bf16"}
_SAPPHIRE_RAPIDS = _ZEN_4 | {"avx_vnni", "amx_tile", "amx_bf16", "amx_int8"}


@pytest.mark.parametrize(
    ("features", "machine", "names"),
    [
        (_HASWELL, "x86_64", ["avx2"]),
        (_HASWELL | {"avx_vnni"}, "x86_64", ["avxvnni", "avx2"]),  # Alder Lake
        (_SKYLAKE, "x86_64", ["avx512f", "avx2"]),
        (_ICE_LAKE, "x86_64", ["avx512vnni", "avx512f", "avx2"]),
        (_ZEN_4, "x86_64", ["avx512", "avx512vnni", "avx512f", "avx2"]),
        (_SAPPHIRE_RAPIDS, "x86_64", ["amx", "avx512", "avx512vnni", "avx512f", "avxvnni", "avx2"]),
        (_CORTEX_A72, "aarch64", ["neon"]),
        (_NEOVERSE_N1, "aarch64", ["neondot", "neon"]),
        (_NEOVERSE_V1, "aarch64", ["neonbf16", "neondot", "neon"]),
        (frozenset({"sse4_2"}), "x86_64", []),
    ],
)
def test_a_cpu_gets_every_path_that_it_has_the_features_of(
    features: frozenset[str], machine: str, names: list[str]
) -> None:
    assert [path.name for path in supported_paths(features, machine)] == names


def test_paths_that_may_be_forced_are_those_that_there_are() -> None:
    from tidemill_engine.config import KERNELS

    assert set(KERNELS) == {"auto", "torch", *(path.name for path in PATHS)}
