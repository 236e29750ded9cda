"""Threads of the kernels' pool that the system puts aside: others do what they have in hand, once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tidemill_kernels.native.build import COMPILERS, SOURCES

PROGRAM = Path(__file__).parent / "stalls.cpp"
FLAGS = ("-std=gnu++17", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}")


@pytest.fixture(scope="module")
def stalls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the program that stages them."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    program = tmp_path_factory.mktemp("stalls") / "stalls"
    subprocess.run([compiler, *FLAGS, str(PROGRAM), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("name", ["computing", "writing", "later", "once", "many"])
def test_a_thread_that_is_put_aside_holds_up_nobody(stalls: Path, name: str) -> None:
    done = subprocess.run([stalls, name], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_program_can_fail(stalls: Path) -> None:
    assert subprocess.run([stalls, "what"], check=False, capture_output=True, timeout=60).returncode == 1
