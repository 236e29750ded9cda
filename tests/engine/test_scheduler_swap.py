"""Swap, victims and compaction: over the sim runner, which fails a row that reads wrong KV."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine_builders import Harness, make_harness, make_request
from tidemill_engine.scheduler.preemption import SPARED_STEPS
from tidemill_engine.scheduler.seams import Seams


@dataclass(frozen=True)
class Costs:
    """Costs by which a block and a token take fixed times."""

    per_block: float
    per_token: float

    def swap_seconds(self, num_blocks: int) -> float:
        return num_blocks * self.per_block

    def recompute_seconds(self, num_tokens: int) -> float:
        return num_tokens * self.per_token


CHEAP_SWAP = Seams(costs=Costs(per_block=0.0, per_token=1.0))
DEAR_SWAP = Seams(costs=Costs(per_block=10.0, per_token=1.0))


def alone(name: str, prompt_len: int, max_tokens: int) -> list[int]:
    harness = make_harness(num_blocks=256, max_num_batched_tokens=1024, is_prefix_caching=False)
    harness.add(make_request(name, prompt_len=prompt_len, max_tokens=max_tokens))
    harness.run()
    return harness.tokens(name)


def crowded(*, depth: int = 1, num_swap_blocks: int = 32, seams: Seams = CHEAP_SWAP) -> Harness:
    harness = make_harness(
        depth=depth, num_blocks=12, max_num_batched_tokens=64, num_swap_blocks=num_swap_blocks, seams=seams
    )
    for name in "abc":
        harness.add(make_request(name, prompt_len=8, max_tokens=24))
    return harness


def num_swapped_blocks(harness: Harness) -> tuple[int, int]:
    return (
        sum(len(step.swap_out) for step in harness.steps),
        sum(len(step.swap_in) for step in harness.steps),
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_a_swapped_request_comes_back_with_its_blocks_and_gets_the_same_tokens(depth: int) -> None:
    harness = crowded(depth=depth)
    harness.run()
    out, back = num_swapped_blocks(harness)
    assert out > 0
    assert 0 < back <= out
    for name in "abc":
        assert harness.tokens(name) == alone(name, 8, 24)
    assert harness.scheduler.stats().num_free_swap_blocks == 32


def test_a_swapped_request_is_counted_as_swapped_and_not_as_waiting() -> None:
    harness = crowded()
    while harness.scheduler.stats().num_preemptions == 0:
        harness.step()
    stats = harness.scheduler.stats()
    assert (stats.num_swapped, stats.num_waiting) == (1, 0)
    assert stats.num_free_swap_blocks < stats.num_swap_blocks


def test_blocks_that_came_back_are_found_again_by_others() -> None:
    harness = crowded()
    while num_swapped_blocks(harness)[1] == 0:
        harness.step()
    harness.step()
    back = harness.steps[-2].swap_in[:, 1]
    is_published = harness.scheduler._kv._pool.index.is_published
    num_full = int(is_published[back].sum())
    assert num_full >= len(back) - 1, "all but the last, partly filled one have names"


def test_without_room_in_the_cpu_pool_it_is_recomputed() -> None:
    harness = crowded(num_swap_blocks=1)
    harness.run()
    assert harness.scheduler.stats().num_preemptions > 0
    assert num_swapped_blocks(harness) == (0, 0)


def test_where_copying_takes_longer_than_computing_it_is_recomputed() -> None:
    harness = crowded(seams=DEAR_SWAP)
    harness.run()
    assert harness.scheduler.stats().num_preemptions > 0
    assert num_swapped_blocks(harness) == (0, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_while_swapped_gives_the_places_back(depth: int) -> None:
    harness = crowded(depth=depth)
    while harness.scheduler.stats().num_swapped == 0:
        harness.step()
    harness.abort("c")
    assert harness.scheduler.stats().num_free_swap_blocks == 32
    harness.run()
    assert harness.finish("c").finish_reason == "abort"
    assert harness.tokens("a") == alone("a", 8, 24)


def test_a_request_that_was_resumed_lately_is_spared_unless_nothing_else_moves() -> None:
    harness = make_harness()
    for name in "abc":
        harness.add(make_request(name))
    harness.step()
    rows, preemptor = harness.scheduler._rows, harness.scheduler._preemptor
    row_of = {request.request_id: row for row, request in enumerate(rows.requests) if request is not None}
    rows.resumed_at_step[row_of["c"]] = 100
    assert preemptor.choose(100 + SPARED_STEPS - 1, spares_resumed=True) == row_of["b"]
    assert preemptor.choose(100 + SPARED_STEPS, spares_resumed=True) == row_of["c"]
    assert preemptor.choose(101, spares_resumed=False) == row_of["c"]


@pytest.mark.parametrize("depth", [1, 2])
def test_compaction_makes_scattered_rows_contiguous_without_changing_a_token(depth: int) -> None:
    harness = make_harness(depth=depth, num_blocks=64, max_num_batched_tokens=64)
    for name in "abc":
        harness.add(make_request(name, prompt_len=8, max_tokens=40))
    for _ in range(20):
        harness.step()
    assert harness.scheduler.stats().kv_fragmentation_ratio > 0.3
    harness.scheduler.compact(64)
    harness.step()
    assert len(harness.steps[-1].block_copies) > 0
    assert harness.scheduler.stats().kv_fragmentation_ratio == 0.0
    harness.run()
    for name in "abc":
        assert harness.tokens(name) == alone(name, 8, 40)


def test_compaction_moves_no_more_blocks_than_it_may() -> None:
    harness = make_harness(num_blocks=64, max_num_batched_tokens=64)
    for name in "abc":
        harness.add(make_request(name, prompt_len=8, max_tokens=40))
    for _ in range(20):
        harness.step()
    harness.scheduler.compact(10)
    harness.step()
    assert 0 < len(harness.steps[-1].block_copies) <= 10


def test_a_compacted_prefix_is_found_in_its_new_place() -> None:
    harness = make_harness(num_blocks=64, max_num_batched_tokens=64)
    prompt = list(range(300, 308))
    harness.add(make_request("a", prompt=prompt, max_tokens=40))
    harness.add(make_request("b", prompt_len=8, max_tokens=40))
    for _ in range(12):
        harness.step()
    harness.scheduler.compact(64)
    harness.step()
    harness.abort("a")
    harness.add(make_request("again", prompt=[*prompt, 400], max_tokens=3))
    harness.run()
    assert max(o.num_cached_tokens for o in harness.outputs if o.request_id == "again") == 8
    assert harness.finish("again").finish_reason == "length"
