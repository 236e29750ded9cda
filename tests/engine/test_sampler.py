from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tidemill_engine.messages import SamplingParams
from tidemill_engine.runner.randomness import uniform
from tidemill_engine.runner.sampler import Floats, RowSampling, sample
from tidemill_engine.step import int_array

LOGITS = [0.0, 1.0, 2.0, 3.0, 4.0]


def make_row(
    *, prompt: tuple[int, ...] = (0,), outputs: tuple[int, ...] = (), seed: int = 0, **params: Any
) -> RowSampling:
    end_token_ids = params.pop("end_token_ids", ())
    sibling = params.pop("sibling", 0)
    return RowSampling(
        sampling=SamplingParams(max_tokens=100, **params),
        token_ids=int_array([*prompt, *outputs]),
        num_prompt_tokens=len(prompt),
        seed=seed,
        sibling=sibling,
        end_token_ids=end_token_ids,
    )


def floats(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float32)


def choose(row: RowSampling, logits: list[float] | None = None) -> int:
    return sample(floats([logits or LOGITS]), [row]).token_ids[0]


def draws(logits: list[float] | None = None, count: int = 400, **params: Any) -> list[int]:
    """Return one draw for each of many seeds."""
    return [choose(make_row(seed=seed, **params), logits) for seed in range(count)]


def test_temperature_0_takes_the_largest_logit() -> None:
    assert set(draws(temperature=0.0, count=5)) == {4}


def test_a_tiny_temperature_is_greedy_and_overflows_nothing() -> None:
    assert set(draws(temperature=1e-30, count=5)) == {4}


def test_the_frequencies_are_those_of_the_softmax() -> None:
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    counts = np.bincount(draws(count=4000, temperature=1.0), minlength=5) / 4000
    np.testing.assert_allclose(counts, expected, atol=0.03)


def test_a_high_temperature_flattens_and_a_low_one_sharpens() -> None:
    assert draws(temperature=5.0).count(4) < draws(temperature=1.0).count(4) < draws(temperature=0.3).count(4)


def test_top_k_keeps_the_largest() -> None:
    assert set(draws(top_k=2, temperature=3.0)) == {3, 4}
    assert set(draws(top_k=1, temperature=3.0)) == {4}
    assert set(draws(top_k=99, temperature=3.0)) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_fewest_that_hold_the_mass() -> None:
    assert set(draws(top_p=0.5, temperature=1.0)) == {4}
    assert set(draws(top_p=0.7, temperature=1.0)) == {3, 4}
    assert set(draws(top_p=1e-9, temperature=1.0)) == {4}


def test_top_p_counts_within_top_k() -> None:
    assert set(draws([0.0, 0.0, 0.0, 0.0], top_k=2, top_p=0.4)) <= {0, 1, 2, 3}
    assert len(set(draws([0.0, 0.0, 0.0, 0.0], top_k=2, top_p=0.4))) == 1


def test_top_p_reaches_beyond_the_likeliest_thousand_where_the_mass_does() -> None:
    flat = [0.0] * 5000
    chosen = set(draws(flat, count=600, top_p=0.9))
    assert len(chosen) > 400


def test_min_p_drops_what_is_far_below_the_best() -> None:
    assert set(draws(min_p=0.3, temperature=1.0)) == {3, 4}


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = [0.0, float("-inf"), 0.0, float("-inf")]
    assert set(draws(logits)) == {0, 2}


def test_presence_and_frequency_penalties_count_outputs_only() -> None:
    assert choose(make_row(temperature=0.0, outputs=(4,), presence_penalty=1.5)) == 3
    assert choose(make_row(temperature=0.0, prompt=(4, 4), presence_penalty=1.5)) == 4
    assert choose(make_row(temperature=0.0, outputs=(4,), frequency_penalty=0.6)) == 4
    assert choose(make_row(temperature=0.0, outputs=(4, 4), frequency_penalty=0.6)) == 3
    assert choose(make_row(temperature=0.0, presence_penalty=-2.0, outputs=(3,))) == 3


def test_the_repetition_penalty_counts_the_prompt_too_and_pushes_both_signs_down() -> None:
    assert choose(make_row(temperature=0.0, prompt=(4,), repetition_penalty=2.0)) == 3
    assert choose(make_row(temperature=0.0, prompt=(1,), repetition_penalty=2.0), [-1.5, -1.0]) == 0


def test_logit_bias_forbids_and_forces() -> None:
    assert choose(make_row(temperature=0.0, logit_bias={4: -100.0})) == 3
    assert choose(make_row(temperature=0.0, logit_bias={0: 100.0})) == 0


def test_end_tokens_are_barred_until_min_tokens() -> None:
    barred = make_row(temperature=0.0, min_tokens=2, end_token_ids=(4,))
    assert choose(barred) == 3
    assert choose(make_row(temperature=0.0, min_tokens=2, outputs=(3,), end_token_ids=(4,))) == 4


def test_the_same_seed_and_position_draw_the_same_whoever_sits_beside() -> None:
    row = make_row(seed=7, temperature=2.0)
    others = [make_row(seed=seed, temperature=0.0) for seed in range(3)]
    logits = floats([LOGITS] * 4)
    assert sample(logits, [*others, row]).token_ids[3] == choose(make_row(seed=7, temperature=2.0))


def test_siblings_and_positions_draw_differently() -> None:
    numbers = {uniform(1, position, sibling) for position in range(50) for sibling in range(4)}
    assert len(numbers) == 200
    assert uniform(1, 2, 3) == uniform(1, 2, 3)


def test_uniform_numbers_are_spread_evenly() -> None:
    numbers = np.array([uniform(seed, position, 0) for seed in range(40) for position in range(50)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
    assert counts.min() > 140


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_holds_no_number_is_invalid_and_its_neighbours_are_not(bad: float) -> None:
    logits = floats([LOGITS, [0.0, bad, 0.0, 0.0, 0.0], LOGITS])
    rows = [make_row(temperature=0.0), make_row(temperature=1.0), make_row(temperature=0.0)]
    found = sample(logits, rows)
    assert found.is_valid == [True, False, True]
    assert (found.token_ids[0], found.token_ids[2]) == (4, 4)


def test_a_row_whose_tokens_are_all_forbidden_is_invalid() -> None:
    assert sample(np.full((1, 4), float("-inf"), dtype=np.float32), [make_row()]).is_valid == [False]


def test_logprobs_are_those_of_the_model_with_the_chosen_token_first() -> None:
    row = make_row(temperature=0.0, num_logprobs=2, logit_bias={0: 100.0})
    logprobs = sample(floats([LOGITS]), [row]).logprobs[0]
    expected = (np.array(LOGITS) - np.log(np.exp(LOGITS).sum())).tolist()
    assert logprobs.token_ids == [0, 4, 3]
    assert logprobs.logprobs == pytest.approx([expected[0], expected[4], expected[3]])
    assert math.exp(logprobs.logprobs[1]) < 1.0


def test_no_logprobs_unless_asked_and_the_chosen_one_alone_for_zero() -> None:
    logits = floats([LOGITS, LOGITS])
    rows = [make_row(temperature=0.0), make_row(temperature=0.0, num_logprobs=0)]
    found = sample(logits, rows).logprobs
    assert list(found) == [1]
    assert found[1].token_ids == [4]


def test_a_step_without_logits_samples_nothing() -> None:
    assert sample(floats(np.empty((0, 5))), []).token_ids == []
