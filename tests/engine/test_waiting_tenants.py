"""How tenants share the queue."""

from __future__ import annotations

import pytest

from tidemill_engine.scheduler.fairness import MAX_IDLE_TENANTS
from tidemill_engine.step import int_array
from waiting_bench import BUDGET, Bench


def test_a_flooding_tenant_does_not_hold_up_another_one() -> None:
    bench = Bench()
    for index in range(200):
        bench.add(f"flood-{index}", tokens=100, tenant="flood")
    bench.take(most=100)
    bench.now = 1.0
    for index in range(20):
        bench.add(f"mine-{index}", tokens=100, tenant="mine")
    taken = [bench.take()[0].tenant for _ in range(60)]
    assert taken.index("mine") <= 2 * BUDGET // 100 + 1
    assert taken.count("mine") >= 20


def test_weights_divide_what_is_served() -> None:
    bench = Bench(weights={"big": 3.0})
    for index in range(400):
        bench.add(f"b{index}", tokens=100, tenant="big")
        bench.add(f"s{index}", tokens=100, tenant="small")
    taken = [bench.take()[0].tenant for _ in range(400)]
    assert 270 <= taken.count("big") <= 330


def test_a_weight_that_comes_with_requests_goes_before_the_configured_one_and_counts_at_once() -> None:
    bench = Bench(weights={"big": 0.1})
    for index in range(800):
        bench.add(f"b{index}", tokens=100, tenant="big", weight=3.0)
        bench.add(f"s{index}", tokens=100, tenant="small")
    taken = [bench.take()[0].tenant for _ in range(400)]
    assert 270 <= taken.count("big") <= 330
    bench.add("last", tokens=100, tenant="big", weight=1.0)
    taken = [bench.take()[0].tenant for _ in range(400)]
    assert 170 <= taken.count("big") <= 230


def test_a_weight_that_comes_with_requests_gives_slots() -> None:
    bench = Bench(num_slots=8)
    for index in range(8):
        bench.add(f"big-{index}", tenant="big", weight=3.0)
    bench.add("other", tenant="other")
    assert [request.tenant for request in bench.take(most=8)].count("big") == 6


@pytest.mark.parametrize(
    ("sentence", "weights", "others", "idle_seconds", "most"),
    [
        ("alone, a tenant may hold every slot", {}, 0, None, 8),
        ("beside another one that waits or runs, half of them", {}, 1, None, 4),
        ("beside many, still half: slots that nobody uses are not kept", {}, 5, None, 4),
        ("its weight may give it more", {"flood": 3.0}, 1, None, 6),
        ("a tenant that has just left may come back", {}, 1, 30.0, 4),
        ("one that has long left does not count", {}, 1, 61.0, 8),
    ],
)
def test_how_many_slots_a_tenant_may_hold(
    sentence: str, weights: dict[str, float], others: int, idle_seconds: float | None, most: int
) -> None:
    bench = Bench(weights=weights, num_slots=8)
    for index in range(20):
        bench.add(f"flood-{index}", tenant="flood")
    neighbours = [bench.add(f"o{index}", tenant=f"other-{index}") for index in range(others)]
    for neighbour in neighbours:
        bench.queue.take(neighbour, bench.now)
        if idle_seconds is not None:
            bench.queue.remove(neighbour)
    bench.now += idle_seconds or 0.0
    bench.queue.refresh(bench.now)
    taken = bench.drain(lambda request: request.tenant == "flood")
    assert len(taken) == most, sentence


def test_a_burst_of_equals_takes_no_more_slots_in_one_step_than_its_tenant_may_hold() -> None:
    bench = Bench(num_slots=8, affinity=lambda _request: False)
    for index in range(20):
        bench.add(f"flood-{index}", tenant="flood")
    bench.now = 1.0
    bench.add("mine-0", tenant="mine")
    bench.add("mine-1", tenant="mine")
    taken = [request.tenant for request in bench.take(most=8)]
    assert (taken.count("flood"), taken.count("mine")) == (4, 2)


def test_output_tokens_count_twice() -> None:
    bench = Bench()
    talker = bench.add("t0", tenant="talker")
    bench.add("t1", tenant="talker")
    bench.take()
    before = bench.queue.tenants.counter(talker.tenant_index)
    bench.queue.charge_outputs(int_array([talker.tenant_index] * 7))
    assert bench.queue.tenants.counter(talker.tenant_index) == before + 14


def test_a_tenant_that_returns_is_lifted_to_the_active_minimum_and_can_save_nothing_up() -> None:
    bench = Bench()
    for index in range(50):
        bench.add(f"busy-{index}", tokens=1000, tenant="busy")
    bench.take(most=30)
    idle = bench.add("idle", tenant="idle")
    assert bench.queue.tenants.counter(idle.tenant_index) == 30_000


@pytest.mark.parametrize("has_ended", [False, True])
def test_what_a_tenant_got_while_nobody_else_wanted_it_is_no_debt(has_ended: bool) -> None:
    bench = Bench()
    alone = bench.add("alone", tokens=100, tenant="alone")
    bench.take()
    bench.queue.charge_outputs(int_array([alone.tenant_index] * 5000))
    if has_ended:
        bench.queue.remove(alone)
    for index in range(20):
        bench.add(f"new-{index}", tokens=100, tenant="new")
        bench.add(f"more-{index}", tokens=100, tenant="alone")
    taken = [bench.take()[0].tenant for _ in range(20)]
    assert 8 <= taken.count("alone") <= 12


def test_the_state_of_a_million_tenants_stays_bounded() -> None:
    bench = Bench()
    for index in range(20_000):
        request = bench.add("r", tenant=f"tenant-{index}")
        bench.take()
        bench.queue.charge_outputs(int_array([request.tenant_index]))
        bench.queue.remove(request)
    assert bench.queue.tenants.num_remembered <= MAX_IDLE_TENANTS + 1
    assert len(bench.queue._ranking) < 200
    assert len(bench.queue._live) == 0
