from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.config import LlamaConfig
from tidemill_engine.models.sharding import WHOLE, Shard


def make_config(*, num_heads: int = 8, num_kv_heads: int = 4, intermediate_size: int = 64) -> LlamaConfig:
    return LlamaConfig(
        num_layers=1,
        hidden_size=32,
        intermediate_size=intermediate_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=4,
        vocab_size=101,
        max_model_len=64,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        has_tied_embeddings=False,
    )


def shards(size: int) -> list[Shard]:
    return [Shard(rank=rank, size=size) for rank in range(size)]


def listed(spans: list[slice]) -> list[int]:
    return [index for span in spans for index in range(span.start, span.stop)]


def test_one_part_is_the_whole() -> None:
    assert WHOLE.of(make_config()) == make_config()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_cover_everything_once(size: int) -> None:
    config, parts = make_config(), shards(size)
    assert listed([part.query_heads(config) for part in parts]) == list(range(8))
    assert listed([part.kv_heads(config) for part in parts]) == list(range(4))
    assert listed([part.mlp_columns(config) for part in parts]) == list(range(64))
    assert parts[0].of(config).num_heads == 8 // size
    assert parts[0].of(config).num_kv_heads == 4 // size


@pytest.mark.parametrize("size", [2, 4, 8])
def test_query_heads_lie_with_their_own_key_value_heads_even_where_ranks_share_one(size: int) -> None:
    config = make_config(num_kv_heads=2)
    for part in shards(size):
        local = part.of(config)
        query, kv = part.query_heads(config), part.kv_heads(config)
        assert kv.stop - kv.start == local.num_kv_heads
        for place, head in enumerate(range(query.start, query.stop)):
            assert head // 4 == kv.start + place // (local.num_heads // local.num_kv_heads)


@given(vocab_size=st.integers(1, 500), size=st.integers(1, 9))
def test_the_vocabulary_is_covered_once_and_no_part_is_wider_than_the_others(
    vocab_size: int, size: int
) -> None:
    parts = shards(size)
    assert listed([part.vocabulary(vocab_size) for part in parts]) == list(range(vocab_size))
    width = parts[0].vocabulary_width(vocab_size)
    assert width * size >= vocab_size
    assert all(len(listed([part.vocabulary(vocab_size)])) <= width for part in parts)


def test_says_which_sizes_divide_a_model_that_does_not_divide_so() -> None:
    smollm2 = make_config(num_heads=9, num_kv_heads=3, intermediate_size=1536)
    with pytest.raises(ModelLoadError, match=r"9 query heads over 3 key/value heads.*: 1, 3$") as raised:
        Shard(size=2).of(smollm2)
    assert raised.value.reason == "InvalidConfig"
