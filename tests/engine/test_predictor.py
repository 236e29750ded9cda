from __future__ import annotations

import numpy as np
import pytest

from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.request import Request, RequestLimits
from tidemill_engine.scheduler.predictor import (
    MAX_BUCKETS,
    MIN_OBSERVATIONS,
    LengthPredictor,
    RunningQuantile,
    WorkPredictor,
)
from tidemill_engine.scheduler.step_model import FittedStep, StepModel

LIMITS = RequestLimits(vocab_size=1000, max_model_len=10_000, max_cached_tokens=10_000)


def make_request(*, prompt: int = 100, max_tokens: int = 500, tenant: str = "a") -> Request:
    message = EngineRequest(
        request_id="r",
        handle=0,
        prompt_token_ids=[1] * prompt,
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        arrival_time=0.0,
        tenant=tenant,
    )
    return Request(message, order=0, seed=0, limits=LIMITS)


def test_before_anything_is_known_a_request_is_taken_at_its_word() -> None:
    assert LengthPredictor().predict(make_request(max_tokens=500)) == 500


def test_the_lengths_of_like_requests_replace_the_declared_one_once_there_are_some() -> None:
    predictor = LengthPredictor()
    for _ in range(MIN_OBSERVATIONS - 1):
        predictor.observe(make_request(), 20)
    assert predictor.predict(make_request(max_tokens=500)) == 500
    for _ in range(100):
        predictor.observe(make_request(), 20)
    assert 15 <= predictor.predict(make_request(max_tokens=500)) <= 25


@pytest.mark.parametrize(
    ("prompt", "tenant"), [(100, "b"), (1000, "a")], ids=["another tenant", "another prompt size"]
)
def test_others_lengths_say_nothing(prompt: int, tenant: str) -> None:
    predictor = LengthPredictor()
    for _ in range(50):
        predictor.observe(make_request(), 20)
    assert predictor.predict(make_request(prompt=prompt, tenant=tenant)) == 500


def test_the_declared_length_bounds_what_was_learnt() -> None:
    predictor = LengthPredictor()
    for _ in range(50):
        predictor.observe(make_request(), 400)
    assert predictor.predict(make_request(max_tokens=7)) == 7


def test_a_running_quantile_comes_near_the_true_one() -> None:
    quantile = RunningQuantile()
    for length in np.random.default_rng(0).integers(1, 1000, 5000).tolist():
        quantile.observe(length)
    assert 650 < quantile.value < 850


def test_the_predictor_remembers_a_bounded_number_of_tenants() -> None:
    predictor = LengthPredictor()
    for index in range(MAX_BUCKETS + 500):
        predictor.observe(make_request(prompt=1, tenant=f"t{index}"), 1)
    assert len(predictor) == MAX_BUCKETS


def test_predicted_seconds_grow_with_prompt_and_output() -> None:
    fitted = FittedStep(coefficients=(0.004, 2e-4, 1e-6, 3e-8, 1e-5), residual_p90=0.0)
    predictor = WorkPredictor(StepModel(fitted), 512)
    short, long = make_request(prompt=64, max_tokens=10), make_request(prompt=2048, max_tokens=10)
    talker = make_request(prompt=64, max_tokens=400)
    assert predictor.prefill_seconds(short) == pytest.approx(0.004 + 64 * 2e-4 + 64 * 64 / 2 * 3e-8 + 1e-5)
    assert predictor.prefill_seconds(long) > 0.4
    assert predictor.prefill_seconds(talker) == predictor.prefill_seconds(short)
    assert predictor.total_seconds(talker) - predictor.total_seconds(short) == pytest.approx(2.9, rel=0.1)


def test_before_the_model_is_fitted_work_still_tells_short_from_long() -> None:
    predictor = WorkPredictor(StepModel(), 512)
    short, long = make_request(max_tokens=10), make_request(max_tokens=400)
    assert predictor.total_seconds(short) < predictor.total_seconds(long)
