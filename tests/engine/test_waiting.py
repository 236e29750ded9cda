"""The order in which waiting requests are tried, and what the queue keeps."""

from __future__ import annotations

from tidemill_engine.scheduler.patience import MAX_PASSED_STEPS
from waiting_bench import Bench


def test_first_come_is_first_served() -> None:
    bench = Bench()
    for name in "abc":
        bench.add(name, tokens=100 - ord(name))
    assert bench.order() == ["a", "b", "c"]
    assert bench.drain() == ["a", "b", "c"]


def test_fifo_pays_no_heed_to_priority_and_the_other_orders_do() -> None:
    for policy, first in [("fifo", "low"), ("priority", "high"), ("sjf", "high"), ("slo", "high")]:
        bench = Bench(policy=policy)
        bench.add("low", priority=5)
        bench.add("high", priority=1, outputs=99, tokens=99)
        assert bench.order()[0] == first, policy


def test_shortest_job_goes_first_and_ten_seconds_of_waiting_make_up_for_one_of_work() -> None:
    bench = Bench(policy="sjf")
    bench.add("long", tokens=100, outputs=0 + 100)
    bench.add("short", tokens=10, outputs=10)
    assert bench.order() == ["short", "long"]
    bench.now = 18.5
    bench.add("late", tokens=10, outputs=10)
    assert bench.order() == ["short", "long", "late"]


def test_the_most_urgent_goes_first_by_deadline_less_predicted_prefill() -> None:
    bench = Bench(policy="slo")
    bench.add("relaxed", ttft=20.0)
    bench.add("urgent", ttft=2.0)
    bench.add("long", tokens=1000, ttft=11.0)
    bench.add("default")
    assert bench.order() == ["long", "urgent", "relaxed", "default"]


def test_who_can_no_longer_meet_its_slo_steps_back_behind_those_who_can() -> None:
    bench = Bench(policy="slo")
    bench.add("tight", ttft=1.0)
    bench.add("loose", ttft=30.0)
    assert bench.order() == ["tight", "loose"]
    bench.now = 0.95
    assert bench.order() == ["loose", "tight"]
    assert bench.queue.num_hopeless == 1


def test_a_hopeless_request_hopes_again_only_when_its_prediction_improves_by_a_fifth_of_its_slo() -> None:
    bench = Bench(policy="slo", per_prompt=0.1)
    bench.add("tight", tokens=100, ttft=11.0)
    bench.add("loose", tokens=1, ttft=60.0)
    bench.now = 1.1
    assert bench.order() == ["loose", "tight"]
    bench.per_prompt, bench.now = 0.085, 2.3
    assert bench.order() == ["loose", "tight"]
    bench.per_prompt, bench.now = 0.07, 3.4
    assert bench.order() == ["tight", "loose"]
    bench.now = 4.1
    assert bench.order() == ["loose", "tight"]


def test_a_preempted_request_keeps_its_key_and_goes_first_in_its_class() -> None:
    bench = Bench(policy="priority")
    bench.add("first")
    (first,) = bench.take()
    bench.add("urgent", priority=-1)
    bench.add("other")
    bench.queue.requeue(first, 5.0)
    assert bench.order() == ["urgent", "first", "other"]


def test_the_victim_is_the_last_in_the_order() -> None:
    bench = Bench(policy="priority")
    requests = [bench.add("a", priority=1), bench.add("b"), bench.add("c")]
    bench.take(most=3)
    assert [r.request_id for r in sorted(requests, key=bench.queue.victim_key)] == ["b", "c", "a"]


def test_others_pass_a_head_that_does_not_fit_in_sixty_four_steps_and_no_more() -> None:
    bench = Bench()
    bench.add("huge", tokens=1000)
    for index in range(MAX_PASSED_STEPS + 5):
        bench.add(f"small-{index}", tokens=1)
    taken = bench.drain(lambda request: request.num_tokens < 100)
    assert len(taken) == MAX_PASSED_STEPS
    assert bench.order() == ["huge"]
    assert bench.drain()[0] == "huge"


def test_many_that_pass_in_one_step_count_once() -> None:
    bench = Bench()
    bench.add("huge", tokens=1000)
    for index in range(200):
        bench.add(f"small-{index}", tokens=1)
    assert len(bench.take(lambda request: request.num_tokens < 100, most=150)) == 150
    assert len(bench.order()) == 51


def test_a_head_that_waits_for_its_own_sake_may_be_passed_without_end() -> None:
    bench = Bench()
    follower = bench.add("follower", tokens=1000)
    for index in range(2 * MAX_PASSED_STEPS):
        bench.add(f"small-{index}", tokens=1)
    for _ in range(2 * MAX_PASSED_STEPS):
        for request in bench.queue.candidates(0.0):
            if request is follower:
                bench.queue.defer(request)
                continue
            bench.queue.take(request, 0.0)
            break
    assert bench.order() == ["follower"]


def test_an_eighth_of_the_admitted_tokens_goes_to_the_oldest_whatever_its_rank() -> None:
    bench = Bench(policy="priority")
    for index in range(20):
        bench.add(f"old-{index}", tokens=10, priority=9)
    for index in range(400):
        bench.now = index + 1.0
        bench.add(f"new-{index}", tokens=10)
    taken = [bench.take()[0].request_id for _ in range(180)]
    assert [taken.count(f"old-{index}") for index in range(20)] == [1] * 20
    assert taken.index("old-0") == 8


def test_equals_whose_prefix_is_cached_go_first_and_nobody_else_does() -> None:
    bench = Bench(affinity=lambda request: request.request_id.startswith("cached"))
    for index, name in enumerate(["a", "cached-b", "c", "cached-late"]):
        bench.now = 0.01 * index if name != "cached-late" else 5.0
        bench.add(name)
    assert bench.order() == ["cached-b", "a", "c", "cached-late"]


def test_the_ten_thousandth_request_finds_the_queue_as_the_first_one_did() -> None:
    bench = Bench(policy="slo")
    bench.add("stays", tokens=10**4, ttft=80_000.0)
    for index in range(10_000):
        bench.now = float(index)
        request = bench.add(f"r{index}", ttft=1.0)
        bench.queue.take(request, bench.now)
        if index % 3 == 0:
            bench.queue.requeue(request, bench.now)
        bench.queue.remove(request)
    queue = bench.queue
    heaps = [queue._ranking, queue._timers, queue._oldest._by_age]
    assert max(len(heap) for heap in heaps) < 400  # type: ignore[arg-type]
    assert len(queue._hopeless) < 200


def test_removing_counts_once_and_unknown_requests_are_ignored() -> None:
    bench = Bench()
    request = bench.add("a", tokens=7)
    other = bench.add("b", tokens=5)
    assert bench.queue.num_tokens == 12
    bench.queue.remove(request)
    bench.queue.remove(request)
    assert (len(bench.queue), bench.queue.num_tokens) == (1, 5)
    assert bench.order() == ["b"]
    bench.queue.remove(other)
    assert bench.order() == []
