from __future__ import annotations

import pytest

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.runner.kv_memory import CacheDemand, CacheSize, MemoryFacts, size_cache

MIB, GIB = 1024**2, 1024**3


def make_facts(limit: int | None = None, available: int = 64 * GIB, used: int = 0) -> MemoryFacts:
    return MemoryFacts(limit_bytes=limit, available_bytes=available, used_bytes=used)


def make_demand(max_num_seqs: int = 10_000, max_model_len: int = 4096) -> CacheDemand:
    return CacheDemand(
        bytes_per_block=MIB, block_size=32, max_num_seqs=max_num_seqs, max_model_len=max_model_len
    )


def test_a_limit_leaves_nine_tenths_less_the_model_and_the_api_process() -> None:
    size = size_cache(make_facts(limit=10_000 * MIB, used=2000 * MIB), make_demand())
    assert size.num_blocks == 9000 - 2000 - 512


def test_another_share_of_the_limit_may_be_given() -> None:
    facts = MemoryFacts(
        limit_bytes=10_000 * MIB, available_bytes=64 * GIB, used_bytes=2000 * MIB, usable_share=0.5
    )
    assert size_cache(facts, make_demand()).num_blocks == 5000 - 2000 - 512


def test_without_a_limit_it_takes_a_quarter_of_what_is_available_and_at_most_4_gib() -> None:
    assert size_cache(make_facts(available=8 * GIB), make_demand()).num_blocks == 2048
    assert size_cache(make_facts(available=64 * GIB), make_demand()).num_blocks == 4096


def test_it_takes_no_more_than_all_sequences_at_full_length_need() -> None:
    assert size_cache(make_facts(), make_demand(max_num_seqs=2, max_model_len=33)).num_blocks == 4


def test_what_the_user_says_comes_first() -> None:
    facts = make_facts(limit=GIB)
    assert size_cache(facts, make_demand(), num_blocks=7).num_blocks == 7
    assert size_cache(facts, make_demand(), memory_bytes=100 * MIB).num_blocks == 100
    assert size_cache(facts, make_demand(), num_blocks=7, memory_bytes=MIB).num_blocks == 7


def test_too_little_shortens_the_context() -> None:
    size = size_cache(make_facts(), make_demand(max_model_len=4096), num_blocks=10)
    assert size == CacheSize(num_blocks=10, max_model_len=320)


def test_no_room_at_all_is_refused_with_the_numbers_and_what_to_do() -> None:
    with pytest.raises(ModelLoadError) as caught:
        size_cache(make_facts(limit=1000 * MIB, used=450 * MIB), make_demand())
    assert caught.value.reason == "OutOfMemory"
    for part in ("1000 MiB", "450 MiB", "512 MiB", "--kv-cache-memory-bytes"):
        assert part in caught.value.message
