from __future__ import annotations

from typing import Any

import pytest

from tidemill_engine.config import CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.config import LlamaConfig
from tidemill_engine.runner.kv_memory import CacheDemand, CacheSize, MemoryFacts, size_cache
from tidemill_engine.runner.memory import OwnNumbers, bytes_of_wider_steps, machine_budget

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


@pytest.mark.parametrize(
    ("sentence", "config", "max_model_len", "num_tokens"),
    [
        ("four chunks fill a step", {}, 8192, 3 * 512),
        ("a part of a chunk counts as one", {"max_num_batched_tokens": 1025}, 8192, 2 * 512),
        ("one chunk is the whole step", {"max_num_batched_tokens": 256}, 8192, 0),
        ("no more chunks than rows", {"max_num_seqs": 2}, 8192, 512),
        ("a padded batch fills the step", {"max_num_seqs": 1, "kind": "static"}, 8192, 3 * 512),
        ("prompts are never as long as a chunk", {}, 256, 7 * 256),
        ("without chunks the longest prompt is one step", {"is_chunked_prefill": False}, 8192, 15 * 512),
        (
            "one row is enough for that",
            {"is_chunked_prefill": False, "max_num_seqs": 1},
            8192,
            15 * 512,
        ),
        ("short prompts fill the budget", {"is_chunked_prefill": False}, 1024, 3 * 512),
        (
            "but no more than there are rows",
            {"is_chunked_prefill": False, "max_num_seqs": 1},
            1024,
            512,
        ),
        (
            "padded batches know no chunks anyway",
            {"is_chunked_prefill": False, "kind": "static"},
            8192,
            3 * 512,
        ),
    ],
)
def test_a_step_of_the_whole_budget_takes_more_than_one_of_a_chunk_by_its_further_tokens(
    sentence: str, config: dict[str, Any], max_model_len: int, num_tokens: int
) -> None:
    model = LlamaConfig(
        num_layers=2,
        hidden_size=10,
        intermediate_size=100,
        num_heads=4,
        num_kv_heads=2,
        head_dim=2,
        vocab_size=100,
        max_model_len=8192,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
        has_tied_embeddings=True,
    )
    per_token = 4 * (3 * 10 + 2 * (8 + 4 + 4) + 3 * 100)
    found = bytes_of_wider_steps(SchedulerConfig(**config), model, max_model_len)
    assert found == num_tokens * per_token, sentence


def test_memory_that_is_taken_later_is_kept_from_the_cache() -> None:
    config = CoreConfig(model=ModelConfig(uri="sim://x"))
    now, later = (machine_budget(config, OwnNumbers(), extra) for extra in (0, 1 << 40))
    assert later.used_bytes - now.used_bytes > 1 << 39


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
