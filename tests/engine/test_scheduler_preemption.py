"""Who makes room when blocks run out, and that nobody's tokens change by it."""

from __future__ import annotations

import pytest

from engine_builders import alone, make_harness, make_request
from tidemill_engine.scheduler.plan import StepPlan
from tidemill_engine.step import IntArray


@pytest.mark.parametrize("depth", [1, 2])
def test_the_last_in_order_is_preempted_when_blocks_run_out_and_gets_the_same_tokens(depth: int) -> None:
    harness = make_harness(depth=depth, num_blocks=12, max_num_batched_tokens=64)
    requests = [make_request(name, prompt_len=8, max_tokens=24) for name in "abc"]
    for request in requests:
        harness.add(request)
    harness.run()
    assert harness.scheduler.stats().num_preemptions > 0
    finished = [output.request_id for output in harness.outputs if output.finish_reason]
    assert finished[0] == "a"
    for request in requests:
        assert harness.tokens(request.request_id) == alone(request.prompt_token_ids, 24)


def test_a_request_preempted_twice_is_never_a_victim_again(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_harness(num_blocks=14, max_num_batched_tokens=256)
    preemptor = harness.scheduler._preemptor
    times: dict[str, int] = {}
    anchors: set[str] = set()
    preempt = preemptor.preempt

    def watch(row: int, plan: StepPlan) -> None:
        victim = preemptor._rows.request_at(row)
        assert victim is not preemptor._anchor
        preempt(row, plan)
        times[victim.request_id] = victim.num_preemptions
        if preemptor._anchor is not None:
            anchors.add(preemptor._anchor.request_id)

    monkeypatch.setattr(preemptor, "preempt", watch)
    for index in range(12):
        harness.add(make_request(f"r{index}", prompt_len=8, max_tokens=20 + 5 * index))
    harness.run()
    assert anchors
    assert {times[name] for name in anchors} == {2}


def test_the_last_prompt_makes_room_when_no_prompt_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_harness(max_num_batched_tokens=8, num_blocks=32)
    harness.add(make_request("a", prompt_len=20, max_tokens=2))
    harness.step()
    scheduler = harness.scheduler
    room_for, add_decodes = scheduler._kv.room_for, scheduler._running._add_decodes

    def no_room_beside_others(row: int) -> int:
        return 0 if scheduler.stats().num_running > 1 else room_for(row)

    def no_decode_beside_others(plan: StepPlan, lacking: IntArray) -> None:
        if scheduler.stats().num_running == 1:
            add_decodes(plan, lacking)

    harness.step()
    harness.add(make_request("b", prompt_len=20, max_tokens=2))
    harness.step()
    assert scheduler.stats().num_running == 2
    monkeypatch.setattr(scheduler._kv, "room_for", no_room_beside_others)
    monkeypatch.setattr(scheduler._running, "_add_decodes", no_decode_beside_others)
    harness.step()
    assert scheduler.stats().num_preemptions == 1
    monkeypatch.undo()
    harness.run()
    assert len(harness.tokens("a")) == len(harness.tokens("b")) == 2


def test_waiting_for_blocks_to_retire_preempts_nobody_more() -> None:
    counts = []
    for depth in (1, 2, 3):
        harness = make_harness(depth=depth, num_blocks=24, max_num_batched_tokens=64)
        for name in "abcdef":
            harness.add(make_request(name, prompt_len=8, max_tokens=24))
        harness.run()
        counts.append(harness.scheduler.stats().num_preemptions)
    assert counts[0] > 0
    assert counts == [counts[0]] * 3


def test_admission_closes_after_a_preemption_and_opens_again() -> None:
    harness = make_harness(num_blocks=12, max_num_batched_tokens=64)
    for name in "abc":
        harness.add(make_request(name, prompt_len=8, max_tokens=24))
    while harness.scheduler.stats().num_preemptions == 0:
        harness.step()
    assert not harness.scheduler.stats().is_admission_open
    harness.run()
    harness.add(make_request("d"))
    harness.run()
    assert harness.scheduler.stats().is_admission_open
