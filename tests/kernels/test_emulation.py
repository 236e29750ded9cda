"""What runs the kernels of other machines: what it says where it can't, and when the program ends."""

from __future__ import annotations

import pytest
from harness.errors import HarnessError

from emulation.guest import Guest, prepare
from native_paths import EMULATIONS, is_emulated, library_of
from native_rig import SHAPE
from tidemill_kernels.native.cpu import PATHS, KernelPath
from tidemill_kernels.native.engine import NativeEngine

NEON = next(path for path in PATHS if path.name == "neon")
needs_emulation = pytest.mark.skipif(not is_emulated(NEON), reason="this machine runs NEON itself")


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("harness.prerequisites.SYSTEM_PATH", "/nowhere")


def test_a_machine_without_tools_and_apt_says_which_are_missing(no_tools: None) -> None:
    prepared = prepare.__wrapped__(NEON)
    assert prepared.program is None
    assert "aarch64-linux-gnu-g++" in prepared.missing
    assert "qemu-aarch64" in prepared.missing


@needs_emulation
@pytest.mark.parametrize(
    ("required", "outcome"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_tests_without_an_emulator_are_skipped_or_fail_where_they_must_run(
    no_tools: None, monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr("native_paths.prepare", prepare.__wrapped__)
    monkeypatch.setenv("TIDEMILL_REQUIRE_CLUSTER", required)
    with pytest.raises(outcome, match="qemu-aarch64"):
        library_of.__wrapped__(NEON)


@needs_emulation
@pytest.mark.slow
@pytest.mark.parametrize("path", [NEON], ids=["neon_emulated"])
def test_a_program_that_ends_is_an_error_of_the_call(path: KernelPath) -> None:
    library_of(path)
    program = prepare(path).program
    assert program is not None
    guest = Guest(program, EMULATIONS[path.name].cpu)
    with pytest.raises(HarnessError, match="ended with status 1"):
        guest.call(99)
    guest.close()


@needs_emulation
@pytest.mark.slow
@pytest.mark.parametrize("path", [NEON], ids=["neon_emulated"])
def test_each_engine_has_a_program_of_its_own(path: KernelPath) -> None:
    first, second = (NativeEngine(library_of(path), SHAPE, threads) for threads in (1, 2))
    first.close()
    assert second.block_elements > 0
