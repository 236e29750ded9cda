"""Cached prefixes, leaders, forks: over the sim runner, which fails a row that reads wrong KV."""

from __future__ import annotations

import numpy as np
import pytest

from engine_builders import Harness, make_harness, make_request
from tidemill_engine.config import OrderConfig
from tidemill_engine.step import IntArray, RowFailure, StepResult, int_array

BLOCK = 4


def words(count: int, start: int = 0) -> list[int]:
    return [300 + start + index for index in range(count)]


def alone(prompt: list[int], max_tokens: int, sibling: int = 0) -> list[int]:
    harness = make_harness(num_blocks=256, max_num_batched_tokens=1024, is_prefix_caching=False)
    harness.add(make_request("alone", prompt=prompt, max_tokens=max_tokens, sibling=sibling))
    harness.run()
    return harness.tokens("alone")


def num_cached(harness: Harness, request_id: str) -> int:
    return max(output.num_cached_tokens for output in harness.outputs if output.request_id == request_id)


def num_computed(harness: Harness) -> int:
    return sum(step.num_tokens for step in harness.steps)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [k * BLOCK + rest for k in (1, 2, 5) for rest in (-1, 0, 1)])
def test_a_warm_prompt_gets_the_same_tokens_and_computes_only_what_is_not_cached(
    depth: int, length: int
) -> None:
    harness = make_harness(depth=depth)
    prompt = words(length)
    expected = alone(prompt, 6)
    for name in ("cold", "warm"):
        harness.add(make_request(name, prompt=prompt, max_tokens=6))
        harness.run()
        assert harness.tokens(name) == expected
    assert num_cached(harness, "cold") == 0
    assert num_cached(harness, "warm") == (length - 1) // BLOCK * BLOCK


def test_outputs_are_cached_too_so_that_a_conversation_goes_on_where_it_stopped() -> None:
    harness = make_harness()
    harness.add(make_request("a", prompt=words(6), max_tokens=11))
    harness.run()
    harness.add(make_request("b", prompt=[*words(6), *harness.tokens("a"), 999], max_tokens=3))
    harness.run()
    assert num_cached(harness, "b") == 16


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [k * BLOCK + rest for k in (3, 4) for rest in (-1, 0, 1)])
def test_what_was_computed_beyond_a_stop_string_changes_nothing_for_the_next_who_has_the_same_prefix(
    depth: int, length: int
) -> None:
    harness = make_harness(depth=depth)
    prompt = words(6)
    harness.add(make_request("stopped", prompt=prompt, max_tokens=40))
    while len(harness.tokens("stopped")) < length - len(prompt):
        harness.step()
    harness.abort("stopped")  # as the API process does once it has seen a stop string
    continued = [*prompt, *harness.tokens("stopped")]
    assert len(continued) == length
    for name, end in (("same", []), ("other", [999])):
        harness.add(make_request(name, prompt=[*continued, *end], max_tokens=6))
        harness.run()
        assert harness.tokens(name) == alone([*continued, *end], 6)
        assert num_cached(harness, name) >= (length - 1) // BLOCK * BLOCK - BLOCK


def test_without_prefix_caching_nothing_is_found() -> None:
    harness = make_harness(is_prefix_caching=False)
    for name in "ab":
        harness.add(make_request(name, prompt=words(12)))
        harness.run()
    assert num_cached(harness, "b") == 0
    assert harness.scheduler.stats().prefix_queries_tokens == 24


def test_hits_and_queries_are_counted_in_tokens() -> None:
    harness = make_harness()
    for name in "ab":
        harness.add(make_request(name, prompt=words(12)))
        harness.run()
    stats = harness.scheduler.stats()
    assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens) == (24, 8)


def test_one_tenants_prefix_is_never_found_by_another() -> None:
    harness = make_harness()
    harness.add(make_request("a", prompt=words(12), tenant="a"))
    harness.run()
    harness.add(make_request("b", prompt=words(12), tenant="b"))
    harness.add(make_request("c", prompt=words(12), tenant="a"))
    harness.run()
    assert (num_cached(harness, "b"), num_cached(harness, "c")) == (0, 8)


def test_a_request_that_needs_all_positions_computes_them_all_and_publishes_them() -> None:
    harness = make_harness()
    for name, needs_all in (("a", True), ("b", True), ("c", False)):
        harness.add(make_request(name, prompt=words(12), needs_all_positions=needs_all))
        harness.run()
    assert [num_cached(harness, name) for name in "abc"] == [0, 0, 8]


def test_cached_blocks_are_free_and_are_given_up_when_others_need_them() -> None:
    harness = make_harness(num_blocks=8)
    harness.add(make_request("a", prompt=words(12)))
    harness.run()
    assert harness.scheduler.stats().num_free_blocks == 8
    harness.add(make_request("big", prompt=words(28, start=100), max_tokens=3))
    harness.run()
    harness.add(make_request("b", prompt=words(12)))
    harness.run()
    assert num_cached(harness, "b") == 0
    assert harness.tokens("b") == harness.tokens("a")


@pytest.mark.parametrize("depth", [1, 2])
def test_followers_of_a_prefix_that_is_being_computed_wait_and_compute_only_their_own_ends(
    depth: int,
) -> None:
    harness = make_harness(depth=depth, max_num_batched_tokens=8)
    prefix = words(24)
    for index, name in enumerate("abcd"):
        harness.add(make_request(name, prompt=[*prefix, 900 + index, 901 + index], max_tokens=2))
    harness.add(make_request("other", prompt=words(3, start=500), max_tokens=1))
    harness.run()
    assert [num_cached(harness, name) for name in "abcd"] == [0, 24, 24, 24]
    assert num_computed(harness) <= 24 + 4 * 2 + 4 + 3 + (depth - 1) * 8
    for index, name in enumerate("abcd"):
        assert harness.tokens(name) == alone([*prefix, 900 + index, 901 + index], 2)


def test_a_crowd_of_followers_is_named_at_its_arrival_and_let_go_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = make_harness(max_num_batched_tokens=8)
    prefix = words(24)
    for index in range(80):
        harness.add(make_request(f"r{index}", prompt=[*prefix, 900 + index, 901 + index], max_tokens=2))
    named = [len(request.chain) for request in harness.scheduler._requests.values()]
    assert named == [6] * 80
    looked_up: list[int] = []
    find = harness.scheduler._kv.find_prefix

    def counted(chain: list[bytes]) -> IntArray:
        looked_up.append(len(chain))
        return find(chain)

    monkeypatch.setattr(harness.scheduler._kv, "find_prefix", counted)
    while harness.scheduler._sharing._leaders or not looked_up:
        looked_up.clear()
        leaders = dict(harness.scheduler._sharing._leaders)
        harness.step()
        if leaders == harness.scheduler._sharing._leaders:
            assert len(looked_up) <= 1, "nobody looks again for what is still being computed"
    harness.run()
    for index in range(80):
        assert num_cached(harness, f"r{index}") == (24 if index else 0)
        assert harness.tokens(f"r{index}") == alone([*prefix, 900 + index, 901 + index], 2)


def test_others_pass_followers_that_wait_for_their_leader() -> None:
    harness = make_harness(max_num_batched_tokens=8)
    harness.add(make_request("leader", prompt=words(24), max_tokens=2))
    harness.step()
    harness.add(make_request("follower", prompt=words(25), max_tokens=2))
    harness.add(make_request("other", prompt=words(3, start=500), max_tokens=1))
    harness.run()
    ends = [output.request_id for output in harness.outputs if output.finish_reason]
    assert ends.index("other") < ends.index("follower")


def test_followers_are_let_go_when_their_leader_aborts() -> None:
    harness = make_harness(max_num_batched_tokens=8)
    for name in ("leader", "follower"):
        harness.add(make_request(name, prompt=words(30), max_tokens=2))
    harness.step()
    assert harness.scheduler.stats().num_running == 1
    harness.abort("leader")
    harness.run()
    assert harness.tokens("follower") == alone(words(30), 2)


@pytest.mark.parametrize("needs_all", [False, True])
def test_nobody_waits_for_a_block_that_is_cached_though_a_row_computes_it_once_more(needs_all: bool) -> None:
    """A prompt that ends with a block computes that block's last token again, and some compute everything."""
    harness = make_harness(max_num_batched_tokens=16, order=OrderConfig(policy="priority"))
    harness.add(make_request("leader", prompt=words(24), max_tokens=40))
    harness.step()
    harness.add(make_request("follower", prompt=[*words(24), 900, 901], max_tokens=2, priority=1))
    harness.step()
    follower = harness.scheduler._requests["follower"]
    assert (follower.row, follower.awaited) == (None, follower.chain[4])
    harness.add(make_request("exact", prompt=words(20), max_tokens=9, needs_all_positions=needs_all))
    if needs_all:
        harness.step()
    harness.step()
    assert follower.row is not None
    harness.run()
    assert num_cached(harness, "follower") == 24
    assert harness.tokens("follower") == alone([*words(24), 900, 901], 2)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [7, 8, 9, 10])
def test_siblings_fork_from_the_first_one_and_each_goes_its_own_way(depth: int, length: int) -> None:
    harness = make_harness(depth=depth)
    for sibling in range(4):
        harness.add(make_request(f"s{sibling}", prompt=words(length), max_tokens=9, sibling=sibling))
    harness.run()
    answers = [harness.tokens(f"s{sibling}") for sibling in range(4)]
    assert answers == [alone(words(length), 9, sibling) for sibling in range(4)]
    assert len({tuple(answer) for answer in answers}) == 4
    assert [num_cached(harness, f"s{sibling}") for sibling in range(1, 4)] == [length - 1] * 3
    copies = sum(len(step.block_copies) for step in harness.steps)
    assert copies == (3 if (length - 1) % BLOCK else 0)


def test_a_fork_holds_only_what_it_does_not_share() -> None:
    harness = make_harness(num_blocks=16)
    harness.add(make_request("a", prompt=words(18), max_tokens=20))
    for _ in range(3):
        harness.step()
    before = harness.scheduler.stats().num_free_blocks
    harness.add(make_request("b", prompt=words(18), max_tokens=20))
    harness.step()
    assert num_cached(harness, "b") == 17
    assert before - harness.scheduler.stats().num_free_blocks == 1
    harness.abort("a")
    harness.run()
    assert harness.tokens("b") == alone(words(18), 20)


def test_what_a_failed_row_has_computed_is_not_found_again() -> None:
    harness = make_harness(max_num_batched_tokens=8)
    harness.add(make_request("a", prompt=words(12), max_tokens=4))
    harness.step()
    output = harness.scheduler.schedule(0.0)
    assert output is not None
    harness.runner.launch(output)
    harness.runner.sample(None)
    failed = StepResult(
        step_id=output.step_id,
        rows=int_array(),
        token_ids=np.zeros((0, 1), dtype=np.int32),
        num_accepted=int_array(),
        failures=(RowFailure(row=int(output.rows[0]), message="NaN"),),
    )
    harness.outputs += harness.spelled_out(harness.scheduler.update(failed, 0.0))
    assert harness.finish("a").error == "NaN"
    harness.add(make_request("b", prompt=words(12), max_tokens=4))
    harness.run()
    assert num_cached(harness, "b") == 0
    assert harness.tokens("b") == alone(words(12), 4)


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    harness = make_harness(num_blocks=12, max_num_batched_tokens=64)
    for name in "abc":
        harness.add(make_request(name, prompt_len=8, max_tokens=24))
    harness.run()
    assert harness.scheduler.stats().num_preemptions > 0
    resumed = [row for step in harness.steps for row in step.new_rows][3:]
    starts = [
        int(step.start_pos[step.rows.tolist().index(new_row.row)])
        for step in harness.steps
        for new_row in step.new_rows
    ][3:]
    assert resumed
    assert max(starts) > 0
