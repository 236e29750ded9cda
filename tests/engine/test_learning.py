from __future__ import annotations

from dataclasses import replace

import pytest

from engine_builders import make_harness, make_request
from tidemill_engine.core.learning import Learning, MeasuredCosts
from tidemill_engine.scheduler.step_model import FittedStep, StepModel
from tidemill_engine.step import SchedulerOutput, int_array

MS_PER_TOKEN = StepModel(FittedStep(coefficients=(0.0, 0.001, 0.0, 0.0, 0.0), residual_p90=0.0))


def some_step(**changes: object) -> SchedulerOutput:
    harness = make_harness()
    harness.add(make_request("a", prompt_len=16))
    harness.step()
    return replace(harness.steps[0], **changes)  # type: ignore[arg-type]


def test_a_swap_costs_the_measured_copies_out_and_in() -> None:
    costs = MeasuredCosts(MS_PER_TOKEN, 1024)
    costs.observe(4, 0.02)
    assert costs.swap_seconds(10) == pytest.approx(2 * 10 * 0.005)


def test_later_copies_move_the_estimate() -> None:
    costs = MeasuredCosts(MS_PER_TOKEN, 1024)
    costs.observe(1, 0.01)
    for _ in range(50):
        costs.observe(1, 0.03)
    assert costs.swap_seconds(1) == pytest.approx(0.06, rel=0.01)


def test_the_first_swap_is_tried_since_nothing_is_measured() -> None:
    costs = MeasuredCosts(MS_PER_TOKEN, 1024)
    assert costs.swap_seconds(100) < costs.recompute_seconds(16)


def test_recomputing_costs_what_the_step_model_says_and_nothing_before_it_is_fitted() -> None:
    assert MeasuredCosts(MS_PER_TOKEN, 1024).recompute_seconds(160) == pytest.approx(0.16)
    assert MeasuredCosts(StepModel(), 1024).recompute_seconds(160) == 0.0


def test_what_copies_leave_of_a_step_says_nothing_of_computing() -> None:
    learning, copies = Learning(1024), int_array([[0, 1], [2, 3]])
    for _ in range(64):
        learning.observe(some_step(), 0.01)
    before = learning.model.fitted()
    assert before.coefficients[0] > 0.0 or before.coefficients[1] > 0.0
    for _ in range(64):
        learning.observe(some_step(swap_out=copies), 0.02, 2, 0.0199)
    assert learning.model.fitted() == before


def test_copies_are_learnt_from_steps_that_have_any() -> None:
    learning = Learning(1024)
    learning.observe(some_step(), 1.0)
    assert learning.costs.swap_seconds(1) == 0.0
    copies = int_array([[0, 1], [2, 3]])
    learning.observe(some_step(swap_out=copies), 1.0, 2, 0.5)
    assert learning.costs.swap_seconds(1) == pytest.approx(0.5)


def test_copies_that_end_beside_a_later_step_are_learnt_then_and_its_computing_too() -> None:
    learning, copies = Learning(1024), int_array([[0, 1], [2, 3]])
    learning.observe(some_step(swap_out=copies), 0.01)
    assert learning.costs.swap_seconds(1) == 0.0
    for _ in range(64):
        learning.observe(some_step(), 0.01, 2, 0.5)
    assert learning.costs.swap_seconds(1) == pytest.approx(0.5)
    assert learning.model.is_fitted
