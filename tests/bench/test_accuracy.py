from __future__ import annotations

import numpy as np
import pytest

from tidemill_bench.accuracy.measures import compare, perplexity


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large() -> None:
    assert perplexity(np.zeros((4, 50), dtype=np.float32), [1, 2, 3, 4]) == pytest.approx(50.0)


def test_a_model_that_is_sure_and_right_is_not_perplexed() -> None:
    logits = np.full((3, 5), -100.0, dtype=np.float32)
    logits[0, 2] = logits[1, 4] = 100.0
    assert perplexity(logits, [0, 2, 4]) == pytest.approx(1.0)


def test_agreement_counts_equal_largest_logits_and_difference_their_distance() -> None:
    reference = np.array([[0.0, 1.0], [1.0, 0.0]], dtype=np.float32)
    other = np.array([[0.0, 2.0], [0.0, 1.0]], dtype=np.float32)
    found = compare("other", other, reference, [0, 1])
    assert found.greedy_agreement == 0.5
    assert found.mean_logit_difference == pytest.approx(0.75)
    assert compare("same", reference, reference, [0, 1]).greedy_agreement == 1.0
