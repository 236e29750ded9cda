from __future__ import annotations

import pytest

from tidemill_engine.config import AdmissionMode, Watermarks
from tidemill_engine.errors import InvalidConfig
from tidemill_engine.scheduler.admission import REOPEN_AFTER_STEPS, AdmissionGate

MODES: tuple[AdmissionMode, ...] = ("adaptive", "strict")


def make_gate(mode: AdmissionMode = "adaptive") -> AdmissionGate:
    return AdmissionGate(Watermarks(), 1000, mode)


@pytest.mark.parametrize("mode", MODES)
def test_an_open_gate_admits_what_fits_under_the_high_watermark(mode: AdmissionMode) -> None:
    gate = make_gate(mode)
    assert gate.admits(800, 100)
    assert not gate.admits(800, 101)
    assert gate.is_open, "refusing one request shuts the gate for nobody else"


@pytest.mark.parametrize("mode", MODES)
def test_a_preemption_shuts_the_gate_until_little_is_committed(mode: AdmissionMode) -> None:
    gate = make_gate(mode)
    gate.close(10)
    gate.refresh(11, 700)
    assert not gate.admits(700, 1)
    gate.refresh(12, 699)
    assert gate.admits(699, 1)


def test_an_adaptive_gate_opens_after_sixty_four_steps_without_another_preemption() -> None:
    gate = make_gate()
    gate.close(10)
    gate.close(20)
    gate.refresh(20 + REOPEN_AFTER_STEPS - 1, 800)
    assert not gate.is_open
    gate.refresh(20 + REOPEN_AFTER_STEPS, 800)
    assert gate.is_open


def test_a_strict_gate_never_opens_by_patience() -> None:
    gate = make_gate("strict")
    gate.close(10)
    gate.refresh(10_000, 800)
    assert not gate.is_open


def test_growth_beyond_the_high_watermark_shuts_a_strict_gate_and_not_an_adaptive_one() -> None:
    strict, adaptive = make_gate("strict"), make_gate("adaptive")
    for gate in (strict, adaptive):
        gate.refresh(1, 900)
        assert gate.is_open
        gate.refresh(2, 901)
    assert not strict.is_open
    assert adaptive.is_open
    strict.refresh(3, 699)
    assert strict.is_open


def test_prompts_pause_above_the_critical_watermark() -> None:
    gate = make_gate()
    assert not gate.is_critical(950)
    assert gate.is_critical(951)


@pytest.mark.parametrize(
    ("low", "high", "critical"),
    [
        (0.9, 0.7, 0.95),
        (0.7, 0.95, 0.9),
        (0.7, 0.7, 0.95),
        (0.7, 0.95, 0.95),
        (0.0, 0.9, 0.95),
        (0.7, 0.9, 1.1),
    ],
)
def test_watermarks_out_of_order_are_refused_with_their_values(
    low: float, high: float, critical: float
) -> None:
    with pytest.raises(InvalidConfig, match="watermarks must be ordered"):
        Watermarks(low=low, high=high, critical=critical)
