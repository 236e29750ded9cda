from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import Harness, alone, make_harness, make_request
from examples import examples
from tidemill_engine.sim_vocab import EOS


def test_a_single_request_gets_its_tokens_and_the_reason_length() -> None:
    harness = make_harness()
    harness.add(make_request("a", prompt_len=5, max_tokens=3))
    harness.run()
    assert len(harness.tokens("a")) == 3
    assert harness.finish("a").finish_reason == "length"
    assert harness.scheduler.stats().num_free_blocks == 64


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_only_the_last_asks_for_logits() -> None:
    harness = make_harness(max_num_batched_tokens=16)
    harness.add(make_request("a", prompt_len=40, max_tokens=1))
    harness.run()
    assert [step.num_tokens for step in harness.steps] == [16, 16, 8]
    assert [len(step.logit_rows) for step in harness.steps] == [0, 0, 1]


def test_a_step_takes_a_chunk_of_one_prompt_and_what_is_left_of_others() -> None:
    harness = make_harness(max_num_batched_tokens=32, max_chunk_tokens=12)
    for name, length in (("long", 40), ("short", 10), ("last", 30)):
        harness.add(make_request(name, prompt_len=length, max_tokens=1))
    harness.run()
    assert harness.steps[0].num_scheduled_tokens.tolist() == [12, 10, 10]
    assert max(int(step.num_scheduled_tokens.max()) for step in harness.steps) == 12


def test_a_prompt_that_must_go_in_whole_knows_no_chunk() -> None:
    harness = make_harness(max_num_batched_tokens=32, max_chunk_tokens=12, is_chunked_prefill=False)
    harness.add(make_request("a", prompt_len=40, max_tokens=1))
    harness.run()
    assert [step.num_tokens for step in harness.steps] == [40]


def test_prompt_tokens_still_to_compute_are_those_waiting_and_those_under_way() -> None:
    harness = make_harness(max_num_batched_tokens=16)
    harness.add(make_request("a", prompt_len=40, max_tokens=1))
    left = [harness.scheduler.stats().waiting_prompt_tokens]
    for _ in range(3):
        harness.step()
        left.append(harness.scheduler.stats().waiting_prompt_tokens)
    assert left == [40, 24, 8, 0]


def test_decodes_come_first_and_a_chunk_fills_the_rest_of_the_budget() -> None:
    harness = make_harness(max_num_batched_tokens=16)
    harness.add(make_request("a", prompt_len=4, max_tokens=10))
    harness.step()
    harness.add(make_request("b", prompt_len=40, max_tokens=2))
    harness.step()
    assert harness.steps[-1].num_scheduled_tokens.tolist() == [1, 15]


def test_requests_join_and_leave_at_every_step() -> None:
    harness = make_harness()
    harness.add(make_request("a", max_tokens=2))
    harness.step()
    harness.add(make_request("b", max_tokens=3))
    harness.step()
    assert harness.finish("a").finish_reason == "length"
    assert len(harness.tokens("b")) == 1
    harness.run()
    assert len(harness.tokens("b")) == 3


def test_waiting_requests_are_admitted_in_the_order_of_their_arrival() -> None:
    harness = make_harness(max_num_seqs=1)
    for name in "abc":
        harness.add(make_request(name, max_tokens=2))
    harness.run()
    assert list(dict.fromkeys(output.request_id for output in harness.outputs)) == ["a", "b", "c"]


def test_admission_stops_at_the_high_watermark() -> None:
    harness = make_harness(num_blocks=20, max_num_batched_tokens=256)
    for name in "abc":
        harness.add(make_request(name, prompt_len=31, max_tokens=2))
    harness.step()
    assert harness.scheduler.stats().num_running == 2
    assert harness.scheduler.stats().num_waiting == 1
    harness.run()
    assert len(harness.tokens("c")) == 2


def test_a_request_that_needs_more_than_the_watermark_runs_when_nobody_else_does() -> None:
    harness = make_harness(num_blocks=20)
    harness.add(make_request("huge", prompt_len=78, max_tokens=50))
    harness.run()
    assert len(harness.tokens("huge")) == 2
    assert harness.finish("huge").finish_reason == "length"


def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers_and_the_others_go_on() -> None:
    harness = make_harness(num_blocks=20)
    harness.add(make_request("a", max_tokens=3))
    harness.add(make_request("huge", prompt_len=80))
    harness.run()
    refused = harness.finish("huge")
    assert refused.finish_reason == "error"
    assert refused.error is not None
    assert "80" in refused.error
    assert len(harness.tokens("a")) == 3


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"prompt": []}, "no token"),
        ({"prompt": [-1]}, "between 0 and 4095"),
        ({"prompt": [4096]}, "between 0 and 4095"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {4096: 1.0}}, "logit_bias"),
    ],
)
def test_a_request_that_would_break_the_model_is_refused(
    request_fields: dict[str, object], message: str
) -> None:
    harness = make_harness()
    harness.add(make_request("bad", **request_fields))  # type: ignore[arg-type]
    refused = harness.finish("bad")
    assert refused.finish_reason == "error"
    assert message in str(refused.error)
    assert not harness.scheduler.has_work()


def test_a_second_request_with_the_same_id_is_refused() -> None:
    harness = make_harness()
    harness.add(make_request("a"))
    harness.add(make_request("a"))
    assert "already" in str(harness.finish("a").error)


def test_the_end_token_ends_a_request_unless_it_is_to_be_ignored() -> None:
    harness = make_harness(output_tokens=3)
    harness.add(make_request("a", max_tokens=10, ignore_eos=False))
    harness.add(make_request("b", max_tokens=10, ignore_eos=True))
    harness.run()
    assert harness.tokens("a")[-1] == EOS
    assert len(harness.tokens("a")) == 4
    assert (harness.finish("a").finish_reason, harness.finish("a").stop_token_id) == ("stop", EOS)
    assert len(harness.tokens("b")) == 10


def test_a_stop_token_of_the_request_ends_it() -> None:
    prompt = [300, 301, 302]
    answer = alone(prompt, 5)
    harness = make_harness()
    harness.add(make_request("a", prompt=prompt, max_tokens=5, stop_token_ids=(answer[2],)))
    harness.run()
    assert harness.tokens("a") == answer[:3]
    assert harness.finish("a").stop_token_id == answer[2]


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_of_an_aborted_request_come_back_only_when_no_step_can_touch_them(depth: int) -> None:
    harness = make_harness(depth=depth, num_blocks=16)
    harness.add(make_request("a", prompt_len=12, max_tokens=20))
    output = harness.scheduler.schedule(0.0)
    assert output is not None
    harness.runner.launch(output)
    result = harness.runner.sample(None)
    harness.abort("a")
    assert harness.scheduler.stats().num_free_blocks == 13
    assert harness.spelled_out(harness.scheduler.update(result, 0.0)) == []
    assert harness.scheduler.stats().num_free_blocks == 16
    assert harness.finish("a").finish_reason == "abort"


def test_an_abort_while_waiting_leaks_nothing() -> None:
    harness = make_harness(max_num_seqs=1)
    harness.add(make_request("a", max_tokens=2))
    harness.add(make_request("b", max_tokens=2))
    harness.step()
    harness.abort("b")
    harness.run()
    assert harness.tokens("b") == []
    assert harness.finish("b").finish_reason == "abort"
    assert harness.scheduler.abort("b") is None


def test_an_abort_in_the_middle_of_a_prompt_leaks_nothing() -> None:
    harness = make_harness(max_num_batched_tokens=8)
    harness.add(make_request("a", prompt_len=30))
    harness.step()
    harness.abort("a")
    harness.run()
    assert harness.scheduler.stats().num_free_blocks == 64


def test_the_queue_time_is_said_once_with_the_first_tokens() -> None:
    harness = make_harness(max_num_seqs=1)
    harness.add(make_request("a", max_tokens=3))
    harness.add(make_request("b", max_tokens=3))
    harness.run()
    waits = [output.queue_seconds for output in harness.outputs if output.request_id == "b"]
    assert waits == [4.0, None, None]


def test_twenty_blocks_eight_requests_two_of_them_large_all_finish() -> None:
    harness = make_harness(num_blocks=20, max_num_batched_tokens=32)
    sizes = [46, 8, 8, 46, 8, 8, 8, 8]
    for index, size in enumerate(sizes):
        harness.add(make_request(f"r{index}", prompt_len=size, max_tokens=12))
    harness.run()
    assert all(len(harness.tokens(f"r{index}")) == 12 for index in range(len(sizes)))


request_sizes = st.tuples(
    st.integers(1, 60), st.integers(1, 30), st.integers(0, 40), st.one_of(st.none(), st.integers(0, 60))
)


@examples(100)
@given(
    sizes=st.lists(request_sizes, min_size=1, max_size=12),
    depth=st.integers(1, 3),
    num_blocks=st.integers(4, 40),
    budget=st.integers(1, 40),
    max_num_seqs=st.integers(1, 6),
)
def test_everyone_ends_and_every_block_comes_back_whatever_arrives_and_leaves(
    sizes: list[tuple[int, int, int, int | None]],
    depth: int,
    num_blocks: int,
    budget: int,
    max_num_seqs: int,
) -> None:
    harness = make_harness(
        depth=depth, num_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs
    )
    arrivals = {f"r{index}": size for index, size in enumerate(sizes)}
    for tick in range(61):
        for name, (prompt_len, max_tokens, arrives, leaves) in arrivals.items():
            if arrives == tick:
                harness.add(make_request(name, prompt_len=prompt_len, max_tokens=max_tokens))
            if leaves == tick:
                harness.abort(name)
        harness.step()
    harness.run()
    assert harness.scheduler.stats().num_free_blocks == num_blocks
    assert_all_answered(harness, arrivals, num_blocks * 4)


def assert_all_answered(
    harness: Harness, arrivals: dict[str, tuple[int, int, int, int | None]], capacity: int
) -> None:
    """Fail unless each request ended once, with the tokens that it gets when it is alone."""
    for name, (prompt_len, max_tokens, arrives, leaves) in arrivals.items():
        request = make_request(name, prompt_len=prompt_len, max_tokens=max_tokens)
        finish = harness.finish(name)
        if prompt_len + 1 > capacity:
            assert finish.finish_reason == "error"
            continue
        expected = alone(request.prompt_token_ids, max_tokens)[: capacity - prompt_len]
        tokens = harness.tokens(name)
        if finish.finish_reason == "abort":
            assert leaves is not None
            assert leaves >= arrives
            assert tokens == expected[: len(tokens)]
        else:
            assert finish.finish_reason == "length"
            assert tokens == expected
