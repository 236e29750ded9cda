"""Every Triton kernel compiles for GPUs that are not here, within its bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tidemill_kernels.ahead_of_time import Bounds, Resources, parse_resources
from tidemill_kernels.ahead_of_time.variants import all_variants

LISTING = "Function merge:\n  REG:40 STACK:0 SHARED:128 LOCAL:16 CONSTANT[0]:432 TEXTURE:0"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_every_variant_compiles_within_its_bounds(capability: int) -> None:
    command = [sys.executable, "-m", "tidemill_kernels.ahead_of_time", "--json", "--target", str(capability)]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    compiled = json.loads(ran.stdout)
    wanted = {variant.name for variant in all_variants(capability)}
    assert {name.partition("/")[0] for name in compiled} == wanted
    assert all(taken["registers"] > 0 for taken in compiled.values())


def test_reads_what_a_kernel_takes() -> None:
    found = parse_resources(LISTING, shared_bytes=4096)
    assert found == Resources(registers=40, shared_bytes=4096, spilled_bytes=16)


def test_refuses_a_listing_without_resources() -> None:
    with pytest.raises(ValueError, match="no resource line"):
        parse_resources("Fatbin elf code", shared_bytes=0)


def test_says_what_is_beyond_the_bounds() -> None:
    taken = Resources(registers=255, shared_bytes=200_000, spilled_bytes=8)
    assert Bounds(registers=128).broken_by(taken, 80) == [
        "255 registers, at most 128",
        "8 spilled bytes, at most 0",
        "200000 bytes of shared memory, at most 166912",
    ]
    assert Bounds(spilled_bytes=8).broken_by(taken, 90) == []


@pytest.mark.parametrize("capability", [80, 89, 90])
def test_names_of_variants_are_unique(capability: int) -> None:
    names = [variant.name for variant in all_variants(capability)]
    assert len(names) == len(set(names))
