from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig, Watermarks
from tidemill_engine.errors import InvalidConfig


def test_the_configuration_crosses_as_json_unchanged() -> None:
    config = CoreConfig(
        model=ModelConfig(uri="sim://x", dtype="float32", max_model_len=128, seed=3),
        cache=CacheConfig(block_size=16, num_blocks=7),
        scheduler=SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=99),
    )
    assert CoreConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (lambda: ModelConfig(uri="x", dtype="int3"), "dtype", "int3"),  # type: ignore[arg-type]
        (lambda: ModelConfig(uri="x", max_model_len=0), "max_model_len", "0"),
        (lambda: ModelConfig(uri="x", seed=-1), "seed", "-1"),
        (lambda: CacheConfig(block_size=33), "block_size", "33"),
        (lambda: CacheConfig(num_blocks=0), "num_kv_blocks", "0"),
        (lambda: CacheConfig(memory_bytes=0), "kv_cache_memory_bytes", "0"),
        (lambda: SchedulerConfig(max_num_seqs=0), "max_num_seqs", "0"),
        (lambda: SchedulerConfig(max_num_batched_tokens=0), "max_num_batched_tokens", "0"),
        (lambda: Watermarks(high=0.6), "watermarks", "0.6"),
        (lambda: Watermarks(critical=0.9), "watermarks", "0.9"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(make: Callable[[], object], field: str, value: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make()
    assert caught.value.param == field
    assert value in caught.value.message


@pytest.mark.parametrize(
    "text", ["", "{}", '{"model": {"uri": "x", "dtype": "int3"}}', '{"model": {"uri": "x", "seed": -1}}']
)
def test_json_that_is_not_a_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        CoreConfig.from_json(text)
