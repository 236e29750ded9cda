"""Shapes and constants from a config.json: what can't be computed with is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.config import config_from_hf
from tidemill_engine.models.llama_weights import tensor_shape

FIELDS: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_theta": math.nan}, "rope_theta"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"sliding_window": -5}, "sliding_window"),
        ({"sliding_window": math.nan}, "sliding_window"),
        ({"hidden_size": 1e3}, "hidden_size"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"eos_token_id": [2, -1]}, "eos_token_id"),
        ({"rope_scaling": ["linear"]}, "rotary embeddings must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
    ],
    ids=str,
)
def test_what_can_not_be_computed_with_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        config_from_hf(FIELDS | change, frozenset())


@pytest.mark.parametrize(("value", "found"), [(None, set()), (0, {0}), ([2, 3], {2, 3})])
def test_tokens_that_end_a_text_are_one_or_several(value: object, found: set[int]) -> None:
    assert config_from_hf(FIELDS | {"eos_token_id": value}, frozenset()).eos_token_ids == found


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (96, 64)),
        ("model.layers.0.self_attn.q_proj.bias", (96,)),
        ("model.layers.0.self_attn.k_proj.weight", (32, 64)),
        ("model.layers.0.self_attn.o_proj.weight", (64, 96)),
        ("model.layers.0.self_attn.k_norm.weight", (16,)),
        ("model.layers.0.mlp.down_proj.weight", (64, 96)),
        ("model.norm.weight", (64,)),
        ("lm_head.weight", (97, 64)),
    ],
)
def test_every_tensor_has_a_shape(name: str, shape: tuple[int, ...]) -> None:
    assert tensor_shape(config_from_hf(FIELDS, frozenset()), name) == shape
