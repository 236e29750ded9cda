"""How the C++ engine holds a model's matrices, by what the file has and what memory there is."""

from __future__ import annotations

from typing import cast

import pytest

from tidemill_engine.models.config import LlamaConfig
from tidemill_engine.models.native import bfloat16_bytes, held_formats
from tidemill_engine.models.weights import StoredWeights

CONFIG = LlamaConfig(
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=100,
    max_model_len=128,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    has_tied_embeddings=True,
)
PLENTY, SCARCE = 3 * bfloat16_bytes(CONFIG), bfloat16_bytes(CONFIG)


class File:
    """A source that knows the kinds of its tensors only."""

    config = CONFIG

    def __init__(self, layers: str | None, *, odd: str = "", head: str | None = None) -> None:
        self._layers, self._odd, self._head = layers, odd, head

    def block_kind(self, name: str) -> str | None:
        if name == "model.embed_tokens.weight":
            return self._head
        return None if name == self._odd else self._layers


@pytest.mark.parametrize(
    ("file", "quantization", "memory_bytes", "expected"),
    [
        pytest.param(File("q4_1", head="q8_0"), None, PLENTY, ("bf16", "bf16"), id="memory is plenty"),
        pytest.param(File("q4_1", head="q8_0"), None, SCARCE, ("q4_1", "q8_0"), id="memory is scarce"),
        pytest.param(File("q8_0"), None, SCARCE, ("q8_0", "bf16"), id="another output matrix"),
        pytest.param(
            File("q4_1", odd="model.layers.1.mlp.down_proj.weight", head="q8_0"),
            None,
            SCARCE,
            ("bf16", "q8_0"),
            id="a layer differs",
        ),
        pytest.param(File(None), None, SCARCE, ("bf16", "bf16"), id="plain numbers"),
        pytest.param(File("q4_1", head="q8_0"), "int8", SCARCE, ("int8", "int8"), id="int8"),
        pytest.param(File("q4_1", head="q8_0"), "int4", PLENTY, ("int4", "int8"), id="int4"),
    ],
)
def test_blocks_stay_as_they_are_where_bfloat16_takes_too_much(
    file: File, quantization: str | None, memory_bytes: int, expected: tuple[str, str]
) -> None:
    assert held_formats(cast("StoredWeights", file), quantization, memory_bytes) == expected


def test_bfloat16_counts_every_matrix_and_both_ends() -> None:
    layer = 64 * (2 * 64 + 2 * 32 + 3 * 96)
    assert bfloat16_bytes(CONFIG) == 2 * (2 * layer + 2 * 100 * 64)
