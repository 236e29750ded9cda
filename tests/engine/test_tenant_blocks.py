"""How tenants share the KV cache: a few very long requests hold no more of it than many short ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import Harness, make_harness, make_request
from examples import examples
from tidemill_engine.config import OrderConfig, Watermarks
from tidemill_engine.step import int_array

BLOCK = 4
WATERMARKS = Watermarks(high=0.91, low=0.9, critical=0.95)
"""Of 44 blocks requests are admitted up to 40."""


def make(*, num_blocks: int = 44, weights: dict[str, float] | None = None, **options: Any) -> Harness:
    defaults: dict[str, Any] = {
        "max_num_batched_tokens": 512,
        "max_num_seqs": 16,
        "watermarks": WATERMARKS,
        "order": OrderConfig(tenant_weights=weights or {}),
    }
    return make_harness(num_blocks=num_blocks, **defaults | options)


def running(harness: Harness) -> dict[str, int]:
    """Return how many requests of each tenant run."""
    requests = [r for r in harness.scheduler._requests.values() if r.row is not None]
    return {tenant: sum(r.tenant == tenant for r in requests) for tenant in {r.tenant for r in requests}}


def held(harness: Harness, tenant: str) -> int:
    """Return how many different blocks a tenant's running requests hold."""
    kv = harness.scheduler._kv
    rows = [r.row for r in harness.scheduler._requests.values() if r.tenant == tenant and r.row is not None]
    return len({block for row in rows for block in kv.block_table[row, : kv.num_held[row]].tolist()})


def flood(harness: Harness, count: int, *, prompt_len: int = 30, tenant: str = "flood") -> None:
    """Add requests of eight blocks each that go on for long."""
    for index in range(count):
        harness.add(make_request(f"{tenant}-{index}", prompt_len=prompt_len, max_tokens=1, tenant=tenant))


@pytest.mark.parametrize(
    ("sentence", "weights", "others", "most"),
    [
        ("alone, a tenant may hold the whole cache", {}, 0, 5),
        ("beside another one that is active, half of it", {}, 1, 2),
        ("beside many, still half", {}, 3, 2),
        ("its weight may give it more", {"flood": 4.0}, 1, 4),
    ],
)
def test_how_much_of_the_cache_a_tenant_may_hold(
    sentence: str, weights: dict[str, float], others: int, most: int
) -> None:
    harness = make(weights=weights)
    for index in range(others):
        harness.add(make_request(f"o{index}", prompt_len=2, max_tokens=20, tenant=f"other-{index}"))
    flood(harness, 9)
    harness.step()
    admitted = [row for step in harness.steps for row in step.new_rows]
    assert len(admitted) - others == most, sentence


def test_a_request_larger_than_its_tenants_share_runs_once_nothing_else_of_its_tenant_does() -> None:
    harness = make()
    harness.add(make_request("other", prompt_len=2, max_tokens=30, tenant="other"))
    harness.add(make_request("short", prompt_len=10, max_tokens=4, tenant="flood"))
    harness.add(make_request("huge", prompt_len=100, max_tokens=4, tenant="flood"))
    harness.step()
    assert running(harness) == {"other": 1, "flood": 1}
    harness.run()
    ends = [output.request_id for output in harness.outputs if output.finish_reason]
    assert ends == ["short", "huge", "other"]


def test_a_tenants_later_requests_do_not_pass_the_one_that_its_share_has_no_room_for() -> None:
    harness = make()
    harness.add(make_request("other", prompt_len=2, max_tokens=60, tenant="other"))
    harness.add(make_request("first", prompt_len=50, max_tokens=8, tenant="flood"))
    harness.add(make_request("large", prompt_len=60, max_tokens=2, tenant="flood"))
    for index in range(12):
        harness.add(make_request(f"small-{index}", prompt_len=10, max_tokens=8, tenant="flood"))
    harness.run()
    ends = [output.request_id for output in harness.outputs if output.finish_reason]
    assert ends[:2] == ["first", "large"]


def test_who_waits_for_room_in_its_tenants_share_holds_up_nobody_else_however_long() -> None:
    harness = make()
    harness.add(make_request("long", prompt_len=40, max_tokens=30, tenant="flood"))
    harness.add(make_request("next", prompt_len=60, max_tokens=4, tenant="flood"))
    for index in range(100):
        harness.add(make_request(f"o{index}", prompt_len=6, max_tokens=1, tenant="other"))
        harness.step()
        request = harness.scheduler._requests.get(f"o{index}")
        assert request is None or request.row is not None
    harness.run()


def test_a_prefix_that_a_tenants_requests_share_counts_once() -> None:
    harness = make()
    prefix = make_request("p", prompt_len=40).prompt_token_ids
    harness.add(make_request("other", prompt_len=2, max_tokens=40, tenant="other"))
    harness.add(make_request("warm", prompt=[*prefix, 301], max_tokens=40, tenant="flood"))
    harness.step()
    harness.step()
    for index in range(5):
        harness.add(make_request(f"f{index}", prompt=[*prefix, 400 + index], max_tokens=9, tenant="flood"))
    harness.step()
    assert running(harness)["flood"] == 6, "10 shared blocks and one each are less than 20"
    assert held(harness, "flood") <= 20


def test_blocks_that_several_rows_hold_are_counted_once() -> None:
    harness = make()
    prompt = make_request("p", prompt_len=12).prompt_token_ids
    for index in range(3):
        harness.add(make_request(f"r{index}", prompt=[*prompt, 400 + index], max_tokens=9))
        harness.step()
        harness.step()
    rows = int_array([r.row for r in harness.scheduler._requests.values() if r.row is not None])
    kv = harness.scheduler._kv
    listed = np.concatenate([kv.block_table[row, : kv.num_held[row]] for row in rows])
    assert kv.num_distinct_blocks(rows) == len(set(listed.tolist())) < len(listed)
    assert kv.num_distinct_blocks(int_array()) == 0


def test_blocks_are_freed_when_the_last_row_that_holds_them_goes() -> None:
    harness = make()
    prompt = make_request("p", prompt_len=12).prompt_token_ids
    for name, last in (("a", 401), ("b", 402), ("c", 403)):
        harness.add(make_request(name, prompt=[*prompt, last], max_tokens=9))
        harness.step()
        harness.step()
    kv = harness.scheduler._kv
    a, b, c = (harness.scheduler._requests[name].row for name in "abc")
    own = [int(kv.num_held[row]) - 3 for row in (a, b, c)]
    assert kv.num_freed_in_turn(int_array([a, c])).tolist() == [own[0], own[0] + own[2]]
    assert kv.num_freed_in_turn(int_array([c, a, b])).tolist() == [own[2], own[2] + own[0], sum(own) + 3]
    shared = kv.block_table[a, :2]
    assert kv.num_freed_in_turn(int_array([c, a, b]), kept=shared)[-1] == sum(own) + 1
    assert kv.num_freed_in_turn(int_array()).tolist() == []


@pytest.mark.parametrize("depth", [1, 2])
def test_a_tenant_whose_outputs_have_outgrown_its_share_is_preempted_first(depth: int) -> None:
    harness = make(num_blocks=40, depth=depth)
    for index in range(3):
        harness.add(make_request(f"grown-{index}", prompt_len=8, max_tokens=60, tenant="grown"))
    for _ in range(12):
        harness.step()
    for index in range(2):
        harness.add(make_request(f"later-{index}", prompt_len=8, max_tokens=30, tenant="later"))
    preempted: set[str] = set()
    while harness.scheduler.has_work():
        harness.step()
        requests = harness.scheduler._requests.values()
        preempted |= {request.request_id for request in requests if request.num_preemptions}
    harness.run()
    assert preempted
    assert not preempted & {"later-0", "later-1"}
    assert all(len(harness.tokens(f"grown-{index}")) == 60 for index in range(3))


def test_a_single_request_larger_than_its_tenants_share_is_no_more_a_victim_than_others() -> None:
    harness = make(num_blocks=40)
    harness.add(make_request("huge", prompt_len=90, max_tokens=30, tenant="huge"))
    harness.step()
    for index in range(3):
        harness.add(make_request(f"small-{index}", prompt_len=8, max_tokens=20, tenant="small"))
    harness.step()
    harness.step()
    assert running(harness) == {"huge": 1, "small": 3}
    while harness.scheduler.stats().num_preemptions == 0:
        harness.step()
    assert harness.scheduler._requests["huge"].num_preemptions == 0
    harness.run()


def test_an_urgent_request_over_its_tenants_share_takes_its_own_blocks_and_no_one_elses() -> None:
    harness = make(order=OrderConfig(policy="priority"), is_preempting_lower_classes=True)
    harness.add(make_request("theirs", prompt_len=30, max_tokens=20, priority=2, tenant="other"))
    harness.add(make_request("mine", prompt_len=60, max_tokens=20, priority=1, tenant="me"))
    harness.step()
    harness.add(make_request("urgent", prompt_len=30, max_tokens=2, tenant="me"))
    harness.step()
    requests = harness.scheduler._requests.values()
    assert {r.request_id for r in requests if r.num_preemptions} == {"mine"}
    assert running(harness) == {"other": 1, "me": 1}
    harness.run()


@pytest.mark.parametrize("options", [{}, {"num_blocks": 400, "max_num_seqs": 4}], ids=["blocks", "slots"])
def test_an_urgent_request_over_its_tenants_share_keeps_no_other_tenants_urgent_one_waiting(
    options: dict[str, Any],
) -> None:
    harness = make(
        order=OrderConfig(policy="priority"), is_preempting_lower_classes=True, **options
    )  # fmt: skip
    for index in range(2):
        harness.add(make_request(f"low-{index}", prompt_len=36, max_tokens=40, priority=2, tenant="low"))
        harness.add(make_request(f"mine-{index}", prompt_len=28, max_tokens=40, tenant="me"))
    harness.step()
    assert running(harness) == {"low": 2, "me": 2}
    harness.add(make_request("more", prompt_len=40, max_tokens=2, tenant="me"))
    harness.add(make_request("yours", prompt_len=40, max_tokens=20, tenant="you"))
    harness.step()
    harness.step()
    requests = harness.scheduler._requests
    assert requests["more"].row is None
    assert requests["yours"].row is not None
    assert {r.request_id for r in requests.values() if r.num_preemptions} <= {"low-0", "low-1"}
    harness.run()


@given(
    requests=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 90), st.integers(1, 12), st.booleans()),
        min_size=1,
        max_size=25,
    ),
    depth=st.integers(1, 2),
    gaps=st.integers(0, 3),
    is_chunked=st.booleans(),
)
@examples(150)
def test_nobody_joins_beyond_its_tenants_share_and_everybody_ends(
    requests: list[tuple[str, int, int, bool]], depth: int, gaps: int, is_chunked: bool
) -> None:
    harness = make(
        num_blocks=32, depth=depth, max_num_batched_tokens=48, is_chunked_prefill=is_chunked,
        watermarks=Watermarks(),
    )  # fmt: skip
    scheduler = harness.scheduler
    most = scheduler._gate.most_blocks
    for index, (tenant, prompt_len, max_tokens, has_prefix) in enumerate(requests):
        shared = make_request("shared", prompt_len=20).prompt_token_ids if has_prefix else []
        prompt = [*shared, *make_request(f"r{index}", prompt_len=prompt_len).prompt_token_ids]
        harness.add(make_request(f"r{index}", prompt=prompt, max_tokens=max_tokens, tenant=tenant))
        for _ in range(gaps):
            step_and_check(harness, most)
    while scheduler.has_work():
        step_and_check(harness, most)
    harness.run()
    assert len([output for output in harness.outputs if output.finish_reason]) == len(requests)


def step_and_check(harness: Harness, most: int) -> None:
    """Step, and fail if somebody has joined a tenant's others with more than half of the cache between them.

    What a step's tokens add to each row is no more than a block.
    """
    scheduler, table, kv = harness.scheduler, harness.scheduler._rows, harness.scheduler._kv
    before = set(table.running().tolist())
    is_anybody_else = len({r.tenant for r in scheduler._requests.values()}) > 1
    output = scheduler.schedule(harness.now + 1.0)
    joined = set() if output is None else {new_row.row for new_row in output.new_rows} - before
    for tenant_index in {int(table.tenant_index[row]) for row in joined}:
        own = int_array([r for r in table.running().tolist() if table.tenant_index[r] == tenant_index])
        if is_anybody_else and len(own) > 1:
            missing = int(kv.num_missing(own, table.num_known_tokens[own]).sum())
            assert kv.num_distinct_blocks(own) + missing <= -(-most // 2) + len(own)
    scheduler.schedule = lambda now: output  # type: ignore[method-assign]
    harness.step()
    del scheduler.schedule
