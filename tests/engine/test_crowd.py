"""Who counts as a crowd, and what its first step contains."""

from __future__ import annotations

from engine_builders import make_harness, make_request
from tidemill_engine.scheduler.step_model import StepFeatures


def test_a_crowds_step_begins_with_what_is_not_cached_of_each_prompt() -> None:
    harness = make_harness(max_num_batched_tokens=64, max_chunk_tokens=12)
    shared = list(range(300, 320))
    harness.add(make_request("first", prompt=[*shared, 400]))
    harness.run()
    harness.add(make_request("again", prompt=[*shared, 401, 402]))
    assert harness.scheduler.crowd() is None, "one is no crowd"
    harness.add(make_request("other", prompt_len=30))
    expected = StepFeatures(0, 0.0, 0.0, 0).with_chunk(2, 20).with_chunk(12, 0)
    assert harness.scheduler.crowd() == expected
    harness.step()
    assert harness.steps[-1].num_scheduled_tokens.tolist() == [2, 12]


def test_several_answers_to_one_request_are_no_crowd() -> None:
    harness = make_harness(max_num_batched_tokens=64)
    for sibling in range(3):
        harness.add(make_request(f"a{sibling}", prompt=[300, 301, 302], sibling=sibling))
    assert harness.scheduler.crowd() is None


def test_a_crowd_is_counted_anew_after_its_step() -> None:
    harness = make_harness(max_num_batched_tokens=64)
    for name in "ab":
        harness.add(make_request(name, max_tokens=1))
    assert harness.scheduler.crowd() is not None
    harness.run()
    harness.add(make_request("c"))
    assert harness.scheduler.crowd() is None


def test_who_waits_for_the_same_prefix_adds_nothing_to_the_step() -> None:
    harness = make_harness(max_num_batched_tokens=200, max_chunk_tokens=64)
    shared = list(range(300, 340))
    for index in range(3):
        harness.add(make_request(f"r{index}", prompt=[*shared, 400 + index]))
    assert harness.scheduler.crowd() == StepFeatures(0, 0.0, 0.0, 0).with_chunk(41, 0)
    harness.step()
    assert harness.steps[-1].num_scheduled_tokens.tolist() == [41]


def test_nobody_waits_for_company_that_has_left() -> None:
    harness = make_harness(max_num_batched_tokens=64)
    for name in "ab":
        harness.add(make_request(name))
    harness.scheduler.abort("a")
    assert harness.scheduler.crowd() is None
    harness.add(make_request("c"))
    assert harness.scheduler.crowd() is None, "b may begin at once: it was not counted again"
