"""Preemption across priority classes: off by default; on, no more give way than must, and nobody twice."""

from __future__ import annotations

from typing import Any

import pytest

from engine_builders import Harness, make_harness, make_request
from tidemill_engine.config import OrderConfig, Policy, Watermarks


def make(
    policy: Policy = "priority", *, is_on: bool = True, is_prefix_caching: bool = False, **options: Any
) -> Harness:
    order = OrderConfig(policy=policy)
    return make_harness(
        order=order, is_preempting_lower_classes=is_on, is_prefix_caching=is_prefix_caching,
        **{"max_num_batched_tokens": 64} | options,
    )  # fmt: skip


def make_sharing() -> Harness:
    """Make one whose requests share blocks of equal prompts, and that fills up to the last block."""
    watermarks = Watermarks(high=0.99, low=0.9, critical=1.0)
    return make(is_prefix_caching=True, num_blocks=26, watermarks=watermarks)


def alone(name: str, prompt_len: int, max_tokens: int) -> list[int]:
    harness = make_harness()
    harness.add(make_request(name, prompt_len=prompt_len, max_tokens=max_tokens))
    harness.run()
    return harness.tokens(name)


def preempted(harness: Harness) -> set[str]:
    """Return who was preempted, among those that live."""
    requests = harness.scheduler._requests.values()
    return {request.request_id for request in requests if request.num_preemptions}


@pytest.mark.parametrize("depth", [1, 2])
def test_an_urgent_request_takes_the_slot_of_a_lower_class_which_loses_no_token(depth: int) -> None:
    harness = make(depth=depth, max_num_seqs=1)
    harness.add(make_request("low", max_tokens=12, priority=1))
    for _ in range(4):
        harness.step()
    harness.add(make_request("high", max_tokens=4))
    harness.run()
    ends = [output.request_id for output in harness.outputs if output.finish_reason]
    assert ends == ["high", "low"]
    assert harness.scheduler.stats().num_preemptions == 1
    assert harness.scheduler.stats().is_admission_open, "too much was not admitted: the gate stays open"
    assert harness.tokens("low") == alone("low", 5, 12)


def test_who_has_given_way_is_not_looked_up_before_the_steps_in_flight_have_ended() -> None:
    """A crowd behind the urgent one has the scheduler look at all that wait, in the step that preempts."""
    harness = make(
        depth=2, is_prefix_caching=True, num_blocks=40, max_num_seqs=24, max_num_batched_tokens=512
    )
    harness.add(make_request("low", prompt_len=8, max_tokens=140, priority=5))
    harness.add(make_request("beside", prompt_len=4, max_tokens=200))
    for _ in range(48):
        harness.step()
    harness.add(make_request("urgent", prompt_len=40))
    for number in range(17):
        harness.add(make_request(f"crowd-{number}", prompt_len=12))
    harness.step()
    assert preempted(harness) == {"low"}
    harness.run()
    assert harness.tokens("low") == alone("low", 8, 140)


@pytest.mark.parametrize(
    ("sentence", "policy", "is_on", "priority"),
    [
        ("it is off unless asked for", "priority", False, 0),
        ("equals wait", "priority", True, 1),
        ("a lower class waits", "priority", True, 2),
        ("fifo knows no classes", "fifo", True, 0),
    ],
)
def test_nobody_gives_way_where(sentence: str, policy: Policy, is_on: bool, priority: int) -> None:
    harness = make(policy, is_on=is_on, max_num_seqs=1)
    harness.add(make_request("running", max_tokens=12, priority=1))
    harness.step()
    harness.add(make_request("waiting", priority=priority))
    harness.run()
    assert harness.scheduler.stats().num_preemptions == 0, sentence


def test_only_as_many_give_way_as_must_the_last_in_the_order_first() -> None:
    harness = make(num_blocks=20)
    for index, name in enumerate("abcd"):
        harness.add(make_request(name, prompt_len=14, max_tokens=20, priority=1 + index))
        harness.step()
    harness.add(make_request("high", prompt_len=20, max_tokens=2))
    harness.step()
    assert preempted(harness) == {"d", "c"}
    assert harness.scheduler._requests["high"].row is not None
    harness.run()
    for name in "abcd":
        assert harness.tokens(name) == alone(name, 14, 20)


def test_nobody_gives_way_for_what_would_not_fit_all_the_same() -> None:
    harness = make(num_blocks=20)
    harness.add(make_request("peer", prompt_len=50, max_tokens=10))
    harness.add(make_request("low", prompt_len=8, max_tokens=10, priority=1))
    harness.step()
    harness.add(make_request("high", prompt_len=30, max_tokens=2))
    harness.step()
    assert preempted(harness) == set()
    harness.run()


def test_a_request_that_lost_its_place_twice_keeps_it_from_then_on() -> None:
    harness = make(max_num_seqs=1)
    harness.add(make_request("low", prompt_len=5, max_tokens=200, priority=1))
    for index in range(6):
        for _ in range(40):
            harness.step()
        harness.add(make_request(f"high-{index}", max_tokens=2))
    harness.run()
    assert harness.scheduler.stats().num_preemptions == 2
    assert harness.tokens("low") == alone("low", 5, 200)


def test_a_tenant_that_holds_its_share_of_the_slots_takes_its_own_and_no_one_elses() -> None:
    harness = make(max_num_seqs=2)
    harness.add(make_request("mine", max_tokens=20, priority=1, tenant="me"))
    harness.add(make_request("theirs", max_tokens=20, priority=2, tenant="other"))
    harness.step()
    harness.add(make_request("urgent", max_tokens=2, tenant="me"))
    harness.step()
    assert preempted(harness) == {"mine"}
    harness.run()


def test_nobody_gives_way_for_blocks_that_others_hold_too() -> None:
    harness = make_sharing()
    prompt = make_request("p", prompt_len=40).prompt_token_ids
    harness.add(make_request("first", prompt=[*prompt, 301], max_tokens=20))
    harness.step()
    harness.step()
    harness.add(make_request("low", prompt=[*prompt, 302], max_tokens=20, priority=2))
    harness.step()
    harness.add(make_request("urgent", prompt_len=56, max_tokens=2, priority=1))
    harness.step()
    assert preempted(harness) == set(), "10 of its 11 blocks would stay with the first"
    harness.run()


def test_blocks_that_an_urgent_request_shares_with_a_victim_are_no_room_for_it() -> None:
    harness = make_sharing()
    prompt = make_request("p", prompt_len=40).prompt_token_ids
    harness.add(make_request("other", prompt_len=40, max_tokens=20))
    harness.add(make_request("low", prompt=[*prompt, 302], max_tokens=20, priority=2))
    harness.step()
    harness.step()
    harness.step()
    harness.add(make_request("urgent", prompt=[*prompt, *range(303, 319)], max_tokens=2, priority=1))
    harness.step()
    assert preempted(harness) == set(), "it brings back what it shares with who gives way"
    harness.run()
