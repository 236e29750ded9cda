"""Drawing in C++ against the engine's own sampler: the same token for the same number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native_paths import library_of, paths
from tidemill_engine.messages import SamplingParams
from tidemill_engine.runner.sampler import RowSampling, draw_each
from tidemill_engine.step import int_array
from tidemill_kernels.native.cpu import KernelPath
from tidemill_kernels.native.engine import EngineShape, NativeEngine
from tidemill_kernels.native.library import Draw

VOCAB = 5003
NUM_ROWS = 200


@pytest.fixture(scope="module", params=paths)
def engine(request: pytest.FixtureRequest) -> NativeEngine:
    path: KernelPath = request.param
    shape = EngineShape(
        num_layers=0,
        hidden_size=8,
        intermediate_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=VOCAB,
        max_positions=1,
        block_size=16,
        rms_norm_eps=1e-5,
    )
    return NativeEngine(library_of(path), shape, 2)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.2, "top_p": 0.9},
        {"temperature": 3.0},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": VOCAB + 7},
        {"top_p": 0.5},
        {"top_p": 1e-6},
        {"top_k": 50, "top_p": 0.95},
        {"min_p": 0.05},
        {"min_p": 0.02, "top_k": 30, "top_p": 0.8, "temperature": 1.7},
    ],
    ids=str,
)
def test_the_same_number_draws_the_token_that_the_sampler_draws(
    engine: NativeEngine, params: dict[str, Any]
) -> None:
    generator = np.random.default_rng(5)
    logits = generator.normal(size=(NUM_ROWS, VOCAB), scale=3.0).astype(np.float32)
    sampling = SamplingParams(max_tokens=1, **params)
    rows = [
        RowSampling(
            sampling=sampling,
            token_ids=int_array([1, 2]),
            num_prompt_tokens=2,
            seed=seed,
            sibling=0,
            end_token_ids=(),
        )
        for seed in range(NUM_ROWS)
    ]
    draws = [
        Draw(
            temperature=sampling.temperature,
            min_p=sampling.min_p,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            number=row.number,
        )
        for row in rows
    ]
    found = engine.draw(logits, np.arange(NUM_ROWS, dtype=np.int32), draws)
    expected = np.array(draw_each(logits, list(range(NUM_ROWS)), rows))
    # Weights differ in their last bits, so a number that falls within those of a border may go either way.
    assert (found != expected).sum() <= 1


def test_equal_logits_are_drawn_in_the_order_of_their_tokens(engine: NativeEngine) -> None:
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    for number, top_k, token in ((0.0, 3, 0), (0.5, 3, 1), (0.99, 3, 2), (0.9999, 0, VOCAB - 1)):
        draw = Draw(temperature=1.0, min_p=0.0, top_p=1.0, top_k=top_k, number=number)
        assert engine.draw(logits, np.zeros(1, dtype=np.int32), [draw]).tolist() == [token]
