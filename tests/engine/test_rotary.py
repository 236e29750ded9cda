"""Scaled rotary embeddings: the numbers of transformers, and errors that name what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig as HfConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.rotary import divisors_from_hf, plain_frequencies

HEAD_DIM = 128
THETA = 500_000.0
OF_LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": THETA,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "rope_theta": THETA, "factor": 2.5}


@pytest.mark.parametrize(
    "rope", [OF_LLAMA_3_1, {**OF_LLAMA_3_1, "factor": 32.0}, LINEAR], ids=["3.1", "3.2", "linear"]
)
def test_frequencies_are_those_of_transformers(rope: dict[str, Any]) -> None:
    config = HfConfig(
        hidden_size=4096, num_attention_heads=32, max_position_embeddings=131_072, rope_parameters=rope
    )
    expected, factor = ROPE_INIT_FUNCTIONS[str(rope["rope_type"])](config, device="cpu")
    assert factor == 1.0
    divisors = np.array(divisors_from_hf(rope, HEAD_DIM, THETA), dtype=np.float32)
    assert len(divisors) == HEAD_DIM // 2
    np.testing.assert_allclose(plain_frequencies(HEAD_DIM, THETA) / divisors, expected.numpy(), rtol=2e-6)


def test_llama_3_1_keeps_what_turns_fast_and_slows_down_what_turns_slowly() -> None:
    divisors = divisors_from_hf(OF_LLAMA_3_1, HEAD_DIM, THETA)
    assert divisors[0] == 1.0
    assert divisors[-1] == pytest.approx(8.0)
    assert list(divisors) == sorted(divisors)
    assert any(1.0 < divisor < 8.0 for divisor in divisors)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_type": "yarn"}, "'yarn'"),
        ({"factor": None}, "factor"),
        ({"factor": 0}, "factor"),
        ({"low_freq_factor": "x"}, "low_freq_factor"),
        ({"high_freq_factor": 1.0}, "high_freq_factor"),
        ({"original_max_position_embeddings": True}, "original_max_position_embeddings"),
    ],
    ids=str,
)
def test_what_can_not_be_computed_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        divisors_from_hf({**OF_LLAMA_3_1, **change}, HEAD_DIM, THETA)
