from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import Harness, make_harness, make_request
from examples import examples
from tidemill_engine.config import (
    DynamicConfig,
    SchedulerKind,
)


def make(kind: SchedulerKind = "static", **options: object) -> Harness:
    return make_harness(kind=kind, is_prefix_caching=False, **options)  # type: ignore[arg-type]


def test_a_batch_begins_together_and_nobody_joins_it() -> None:
    harness = make(max_num_batched_tokens=64)
    for name in "ab":
        harness.add(make_request(name, prompt_len=5, max_tokens=6))
    harness.step()
    harness.add(make_request("late", prompt_len=5, max_tokens=2))
    harness.step()
    assert harness.scheduler.stats().num_running == 2
    harness.run()
    first_of_late = next(i for i, step in enumerate(harness.steps) if step.new_rows and i > 0)
    assert first_of_late == 6, "one step for the prompts and five more for the slowest member"
    assert len(harness.tokens("late")) == 2


def test_prompts_are_padded_to_the_longest_and_ended_members_go_on_as_padding() -> None:
    harness = make(max_num_batched_tokens=64)
    harness.add(make_request("long", prompt_len=20, max_tokens=6))
    harness.add(make_request("short", prompt_len=4, max_tokens=3))
    harness.run()
    assert [step.num_padding_tokens for step in harness.steps] == [16, 0, 0, 1, 1, 1]
    prompts, *decodes = [step.num_padding_pairs for step in harness.steps]
    assert prompts == (20**2 - 4**2) // 2
    put_off = 2 * 16
    assert decodes == [0, 0, put_off + 23, 24, 25], "attention is paid for in steps that have padding"


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8), max_num_batched_tokens=st.integers(8, 100)
)
@examples(50)
def test_each_prompt_is_padded_to_the_longest_exactly_and_steps_stay_near_the_budget(
    lengths: list[int], max_num_batched_tokens: int
) -> None:
    harness = make(num_blocks=512, max_num_batched_tokens=max_num_batched_tokens)
    for index, length in enumerate(lengths):
        harness.add(make_request(f"r{index}", prompt_len=length, max_tokens=1))
    harness.run()
    computed = [step.num_tokens + step.num_padding_tokens for step in harness.steps]
    assert sum(computed) == len(lengths) * max(lengths)
    pairs = sum(step.num_padding_pairs for step in harness.steps)
    assert pairs == sum((max(lengths) ** 2 - length**2) // 2 for length in lengths)
    assert max(computed) < max_num_batched_tokens + max(lengths)


def test_nobody_decodes_before_all_prompts_are_computed() -> None:
    harness = make(max_num_batched_tokens=16)
    for name in "abc":
        harness.add(make_request(name, prompt_len=12, max_tokens=3))
    harness.run()
    assert [step.num_tokens for step in harness.steps] == [16, 16, 4, 3, 3]


def test_every_member_reserves_the_longest_prompt_and_the_longest_output() -> None:
    harness = make(num_blocks=40, block_size=4, max_num_batched_tokens=64)
    harness.add(make_request("long", prompt_len=20, max_tokens=4))
    harness.add(make_request("talker", prompt_len=4, max_tokens=20))
    for name in "cdef":
        harness.add(make_request(name, prompt_len=4, max_tokens=4))
    harness.step()
    stats = harness.scheduler.stats()
    assert stats.num_running == 4, "10 blocks of 4 tokens for each: 40 in all"
    assert stats.num_free_blocks == 0
    harness.run()
    assert harness.scheduler.stats().num_free_blocks == 40


def test_a_dynamic_batch_begins_at_a_preferred_size() -> None:
    harness = make(
        "dynamic", max_num_batched_tokens=64, dynamic=DynamicConfig(window_seconds=99.0, preferred_sizes=(3,))
    )
    for name in "ab":
        harness.add(make_request(name))
    assert not harness.step()
    harness.add(make_request("c"))
    assert harness.step()
    assert harness.scheduler.stats().num_running == 3


def test_a_dynamic_batch_begins_when_the_oldest_has_waited_for_the_window() -> None:
    harness = make("dynamic", dynamic=DynamicConfig(window_seconds=10.0))
    harness.add(make_request("a", max_tokens=2))
    waits = []
    while not harness.step():
        waits.append(harness.scheduler.wait_seconds(harness.now))
    assert waits == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert harness.scheduler.wait_seconds(harness.now) == 0.0
    harness.run()
    assert len(harness.tokens("a")) == 2


def test_a_full_batch_needs_no_window() -> None:
    harness = make("dynamic", max_num_seqs=2, dynamic=DynamicConfig(window_seconds=3600.0))
    for name in "abc":
        harness.add(make_request(name))
    assert harness.step()
    assert harness.scheduler.stats().num_running == 2


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("depth", [1, 2])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12),
    aborts=st.lists(st.integers(0, 11), max_size=4),
)
@examples(25)
def test_everybody_ends_with_the_tokens_of_a_continuous_batch_whoever_leaves(
    kind: SchedulerKind, depth: int, lengths: list[tuple[int, int]], aborts: list[int]
) -> None:
    harness = make(kind, depth=depth, max_num_seqs=4, dynamic=DynamicConfig(window_seconds=3.0))
    reference = make_harness(max_num_batched_tokens=64)
    for index, (prompt, output) in enumerate(lengths):
        request = make_request(f"r{index}", prompt_len=prompt, max_tokens=output)
        harness.add(request)
        reference.add(request)
    left = {f"r{index}" for index in aborts}
    for number, name in enumerate(sorted(left)):
        for _ in range(number):
            harness.step()
        harness.abort(name)
    for _ in range(20_000):
        if not harness.scheduler.has_work() and not harness._results:
            break
        harness.step()
    reference.run()
    for index in range(len(lengths)):
        if f"r{index}" not in left:
            assert harness.tokens(f"r{index}") == reference.tokens(f"r{index}")
    stats = harness.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, 64)
