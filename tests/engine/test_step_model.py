from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from tidemill_engine.scheduler.base import DecodeLoad
from tidemill_engine.scheduler.chunking import MIN_CHUNK_TOKENS, FittedChunks, WholeBudget, largest_chunk
from tidemill_engine.scheduler.step_model import FittedStep, StepFeatures, StepModel, features_of
from tidemill_engine.step import SchedulerOutput, int_array

TRUE = (0.004, 2e-4, 1e-6, 3e-8, 1e-5)


def true_seconds(features: StepFeatures) -> float:
    """Return what a step takes on an imagined machine."""
    return StepModel(FittedStep(coefficients=TRUE, residual_p90=0.0)).predict(features)


def make_features(random: np.random.Generator) -> StepFeatures:
    """Return a step with some decodes and maybe a chunk."""
    decodes = int(random.integers(1, 64))
    context = float(random.integers(decodes, decodes * 2000))
    features = StepFeatures(decodes, context, 0.0, decodes)
    if random.random() < 0.5:
        return features.with_chunk(int(random.integers(2, 512)), int(random.integers(0, 2000)))
    return features


def fit(noise: float = 0.0, outliers: float = 0.0, count: int = 400) -> StepModel:
    """Return a model fitted on an imagined machine, of whose steps some take ten times as long."""
    random = np.random.default_rng(1)
    model = StepModel()
    for _ in range(count):
        features = make_features(random)
        seconds = true_seconds(features) * (1 + noise * random.standard_normal())
        model.observe(features, seconds * (10 if random.random() < outliers else 1))
    return model


def relative_errors(model: StepModel) -> list[float]:
    random = np.random.default_rng(2)
    steps = [make_features(random) for _ in range(100)]
    return [abs(model.predict(s) - true_seconds(s)) / true_seconds(s) for s in steps]


def test_a_model_learns_the_times_of_an_exact_machine() -> None:
    assert max(relative_errors(fit())) < 0.01


def test_noise_of_a_tenth_leaves_predictions_within_five_percent() -> None:
    assert np.median(relative_errors(fit(noise=0.1))) < 0.05


def test_one_step_in_twenty_that_takes_ten_times_as_long_moves_predictions_little() -> None:
    assert np.median(relative_errors(fit(noise=0.05, outliers=0.05))) < 0.1


def test_coefficients_are_never_negative_even_where_a_feature_seems_to_save_time() -> None:
    model = StepModel()
    random = np.random.default_rng(3)
    for _ in range(200):
        decodes = int(random.integers(1, 64))
        context = float(random.integers(1, 1000))
        model.observe(StepFeatures(decodes, context, 0.0, decodes), 0.01 - 1e-6 * context)
    assert min(model.fitted().coefficients) >= 0.0


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4096),
            st.floats(0, 1e7),
            st.floats(0, 1e8),
            st.integers(0, 4096),
            st.floats(1e-6, 100.0),
        ),
        min_size=1,
        max_size=60,
    )
)
@examples(60)
def test_whatever_is_observed_predictions_are_finite_and_not_negative(
    steps: list[tuple[int, float, float, int, float]],
) -> None:
    model = StepModel()
    for tokens, context, work, logits, seconds in steps:
        model.observe(StepFeatures(tokens, context, work, logits), seconds)
        assert 0.0 <= model.predict(StepFeatures(tokens, context, work, logits)) < float("inf")
    assert min(model.fitted().coefficients) >= 0.0
    assert model.residual_p90 >= 0.0


def test_nonsense_times_teach_nothing() -> None:
    model = fit()
    before = model.fitted()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        model.observe(StepFeatures(1, 1.0, 0.0, 1), seconds)
    assert model.fitted() == before


def test_a_machine_that_becomes_twice_as_slow_is_followed() -> None:
    model = fit(noise=0.02)
    random = np.random.default_rng(4)
    for _ in range(3000):
        features = make_features(random)
        model.observe(features, 2 * true_seconds(features))
    step = StepFeatures(20, 8000.0, 0.0, 20)
    assert model.predict(step) == pytest.approx(2 * true_seconds(step), rel=0.1)


def test_an_hour_of_decoding_does_not_wear_out_what_prompts_cost() -> None:
    model = fit()
    prompt = StepFeatures(1, 100.0, 0.0, 1).with_chunk(512, 0)
    for _ in range(5000):
        features = StepFeatures(8, 4000.0, 0.0, 8)
        model.observe(features, true_seconds(features))
    assert model.predict(prompt) == pytest.approx(true_seconds(prompt), rel=0.05)


def test_nine_of_ten_steps_stay_within_the_prediction_with_its_margin() -> None:
    model = fit(noise=0.1, count=1000)
    random = np.random.default_rng(5)
    steps = [make_features(random) for _ in range(500)]
    within = [true_seconds(s) * (1 + 0.1 * random.standard_normal()) <= model.predict_p90(s) for s in steps]
    assert 0.8 < np.mean(within) < 0.97


def test_a_model_starts_from_the_numbers_of_another_one() -> None:
    fitted = fit().fitted()
    copy = StepModel(fitted)
    assert copy.is_fitted
    assert copy.fitted() == fitted


def test_features_tell_decodes_from_chunks_and_count_padding() -> None:
    output = SchedulerOutput(
        step_id=0,
        rows=int_array([0, 1, 2]),
        num_scheduled_tokens=int_array([1, 1, 10]),
        num_draft_tokens=int_array([0, 0, 0]),
        start_pos=int_array([9, 19, 30]),
        adapter_slot=int_array([0, 0, 0]),
        logit_rows=int_array([0, 1]),
        num_padding_tokens=5,
    )
    assert features_of(output) == StepFeatures(17, 30.0, 350.0, 2)


@dataclass
class Sizer:
    """A chunk policy on the imagined machine, with SLOs per row."""

    slos: list[float]

    def budget(
        self, *, num_decodes: int, budget: int = 512, last: float | None = None, num_waiting: int = 1
    ) -> int:
        policy = FittedChunks(
            StepModel(FittedStep(coefficients=TRUE, residual_p90=0.1)),
            lambda: np.array(self.slos),
            max_chunk_tokens=512,
        )
        if last is not None:
            policy.note_step(StepFeatures(num_decodes, 100.0 * num_decodes, 0.0, num_decodes), last)
        return policy.prefill_budget(
            DecodeLoad(
                rows=int_array(range(num_decodes)),
                context_tokens=100 * num_decodes,
                token_budget=budget,
                num_waiting=num_waiting,
            )
        )


INF = float("inf")


@pytest.mark.parametrize(
    ("sentence", "sizer", "kwargs", "low", "high"),
    [
        ("nobody decodes: all of the budget", Sizer([0.001]), {"num_decodes": 0}, 512, 512),
        ("a generous SLO: all of the budget", Sizer([9.0, 9.0]), {"num_decodes": 2}, 512, 512),
        (
            "a generous SLO loosens nothing for who has none",
            Sizer([9.0, INF]),
            {"num_decodes": 2, "last": 0.012},
            250,
            290,
        ),
        ("the tightest SLO counts", Sizer([9.0, 0.05]), {"num_decodes": 2}, 150, 250),
        (
            "an SLO that decoding alone breaks: half as much again",
            Sizer([0.001] * 64),
            {"num_decodes": 64},
            40,
            60,
        ),
        ("it does not loosen another's", Sizer([0.001, 0.0085]), {"num_decodes": 2}, 32, 32),
        ("an SLO that chunks break still moves prompts", Sizer([0.0085]), {"num_decodes": 1}, 32, 32),
        (
            "no SLO: five times the last decode step",
            Sizer([INF]),
            {"num_decodes": 1, "last": 0.012},
            250,
            290,
        ),
        ("no SLO and no decode step yet: by prediction", Sizer([INF]), {"num_decodes": 1}, 130, 190),
        (
            "the more wait, the more goes into a step: as the square root of their number",
            Sizer([INF]),
            {"num_decodes": 1, "last": 0.012, "num_waiting": 4, "budget": 2048},
            470,
            530,
        ),
        (
            "an SLO binds however many wait",
            Sizer([9.0, 0.05]),
            {"num_decodes": 2, "num_waiting": 100, "budget": 2048},
            150,
            250,
        ),
        (
            "beside as many as wait, two chunks are the end",
            Sizer([INF] * 64),
            {"num_decodes": 64, "num_waiting": 64, "budget": 2048},
            1024,
            1024,
        ),
        (
            "where three times as many wait, three",
            Sizer([INF] * 8),
            {"num_decodes": 8, "num_waiting": 24, "last": 1.0, "budget": 2048},
            1536,
            1536,
        ),
        ("a budget under the minimum is a hard limit", Sizer([0.001]), {"num_decodes": 1, "budget": 7}, 7, 7),
        ("no budget left", Sizer([0.05]), {"num_decodes": 1, "budget": 0}, 0, 0),
    ],
)
def test_chunk_sizes(sentence: str, sizer: Sizer, kwargs: dict[str, object], low: int, high: int) -> None:
    assert low <= sizer.budget(**kwargs) <= high, sentence  # type: ignore[arg-type]


def test_an_slo_a_little_tighter_changes_chunks_a_little_also_where_decodes_alone_break_it() -> None:
    slos = [number / 10_000 for number in range(3000, 0, -1)]
    sizes = [Sizer([slo] * 400).budget(num_decodes=400, budget=2048) for slo in slos]
    steps = [abs(after - before) for before, after in pairwise(sizes)]
    assert max(steps) <= 16, "a tile of tokens"
    assert min(sizes) == MIN_CHUNK_TOKENS
    assert sizes[-1] > MIN_CHUNK_TOKENS, "what is far out of reach is given up"


@given(
    slo=st.floats(0.001, 2.0),
    num_decodes=st.integers(1, 200),
    start=st.integers(0, 4000),
    most=st.integers(1, 2048),
)
def test_the_chunk_is_the_largest_that_keeps_the_time(
    slo: float, num_decodes: int, start: int, most: int
) -> None:
    model = StepModel(FittedStep(coefficients=TRUE, residual_p90=0.2))
    decodes = StepFeatures(num_decodes, 50.0 * num_decodes, 0.0, num_decodes)
    chunk = largest_chunk(model.predict_p90, decodes, allowed_seconds=slo, start=start, most=most)
    assert min(MIN_CHUNK_TOKENS, most) <= chunk <= most
    if chunk > MIN_CHUNK_TOKENS:
        assert model.predict_p90(decodes.with_chunk(chunk, start)) <= slo
    if chunk < most:
        assert model.predict_p90(decodes.with_chunk(chunk + 1, start)) > slo


def test_before_the_model_is_fitted_prompts_get_one_chunk_beside_decodes_and_else_the_budget() -> None:
    policy = FittedChunks(StepModel(), lambda: np.array([0.001]), max_chunk_tokens=50)
    load = DecodeLoad(rows=int_array([0]), context_tokens=10, token_budget=100)
    assert policy.prefill_budget(load) == 50
    assert policy.effective_tokens == 1 + 50
    assert policy.prefill_budget(replace(load, token_budget=20)) == 20
    assert policy.prefill_budget(replace(load, rows=int_array())) == 100
    assert WholeBudget().prefill_budget(load) == 100
