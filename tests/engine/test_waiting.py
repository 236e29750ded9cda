from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from tidemill_engine.config import OrderConfig
from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.request import Request, RequestLimits
from tidemill_engine.scheduler.fairness import MAX_IDLE_TENANTS
from tidemill_engine.scheduler.order import Estimates
from tidemill_engine.scheduler.patience import MAX_PASSED_STEPS
from tidemill_engine.scheduler.waiting import WaitingQueue
from tidemill_engine.step import int_array

LIMITS = RequestLimits(vocab_size=1000, max_model_len=100_000, max_cached_tokens=100_000)
BUDGET = 512


@dataclass
class Bench:
    """A queue with a clock, and estimates that tests may change: seconds per prompt and output token."""

    policy: str = "fifo"
    weights: dict[str, float] = field(default_factory=dict)
    affinity: Callable[[Request], bool] | None = None
    num_slots: int = 1 << 30
    per_prompt: float = 0.01
    per_output: float = 0.01
    now: float = 0.0
    num_added: int = 0

    def __post_init__(self) -> None:
        config = OrderConfig(policy=self.policy, tenant_weights=self.weights)  # type: ignore[arg-type]
        self.queue = WaitingQueue(
            config,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=self.num_slots,
            estimates=Estimates(prefill_seconds=self.prefill_seconds, total_seconds=self.total_seconds),
            affinity=self.affinity,
        )

    def prefill_seconds(self, request: Request) -> float:
        return self.per_prompt * request.num_tokens

    def total_seconds(self, request: Request) -> float:
        return self.prefill_seconds(request) + self.per_output * request.sampling.max_tokens

    def add(
        self,
        name: str,
        *,
        tokens: int = 10,
        outputs: int = 10,
        tenant: str = "",
        priority: int = 0,
        ttft: float | None = None,
    ) -> Request:
        message = EngineRequest(
            request_id=name,
            handle=self.num_added,
            prompt_token_ids=[1] * tokens,
            sampling=SamplingParams(max_tokens=outputs),
            arrival_time=self.now,
            tenant=tenant,
            priority=priority,
            ttft_slo_seconds=ttft,
        )
        request = Request(message, order=self.num_added, seed=0, limits=LIMITS)
        self.num_added += 1
        self.queue.push(request, self.now)
        return request

    def order(self) -> list[str]:
        """Return the candidates without taking any."""
        return [request.request_id for request in self.queue.candidates(self.now)]

    def take(self, fits: Callable[[Request], bool] = lambda _request: True, most: int = 1) -> list[Request]:
        """Take the first candidates that fit."""
        taken: list[Request] = []
        for request in self.queue.candidates(self.now):
            if len(taken) < most and fits(request):
                self.queue.take(request, self.now)
                taken.append(request)
            if len(taken) == most:
                break
        return taken

    def drain(self, fits: Callable[[Request], bool] = lambda _request: True) -> list[str]:
        """Take everyone, one at a time."""
        names: list[str] = []
        while taken := self.take(fits):
            names += [request.request_id for request in taken]
        return names


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


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(1, 600), st.sampled_from("abc"), st.integers(0, 2), st.floats(0.05, 9)
        ),
        st.tuples(st.just("take"), st.integers(1, 4), st.integers(1, 700)),
        st.tuples(st.just("requeue"), st.integers(0, 50)),
        st.tuples(st.just("remove"), st.integers(0, 50)),
        st.tuples(st.just("wait"), st.floats(0.0, 3.0)),
    ),
    max_size=80,
)


@given(policy=st.sampled_from(["fifo", "sjf", "priority", "slo"]), steps=actions)
@examples(200)
def test_the_queue_offers_everyone_who_waits_once_and_nobody_else(
    policy: str, steps: list[tuple[object, ...]]
) -> None:
    bench = Bench(policy=policy)
    waiting: dict[str, Request] = {}
    running: dict[str, Request] = {}
    for number, (kind, *values) in enumerate(steps):
        if kind == "add":
            tokens, tenant, priority, ttft = values
            name = f"r{number}"
            waiting[name] = bench.add(
                name,
                tokens=tokens,  # type: ignore[arg-type]
                tenant=tenant,  # type: ignore[arg-type]
                priority=priority,  # type: ignore[arg-type]
                ttft=ttft,  # type: ignore[arg-type]
            )
        elif kind == "take":
            most, largest = values
            for request in bench.take(lambda r, largest=largest: r.num_tokens <= largest, most=most):  # type: ignore[misc,arg-type]
                running[request.request_id] = waiting.pop(request.request_id)
        elif kind == "requeue" and running:
            name = sorted(running)[values[0] % len(running)]  # type: ignore[operator]
            waiting[name] = running.pop(name)
            bench.queue.requeue(waiting[name], bench.now)
        elif kind == "remove" and waiting | running:
            everyone = waiting | running
            name = sorted(everyone)[values[0] % len(everyone)]  # type: ignore[operator]
            bench.queue.remove(everyone[name])
            waiting.pop(name, None)
            running.pop(name, None)
        elif kind == "wait":
            bench.now += values[0]  # type: ignore[operator]
        offered = bench.order()
        assert len(offered) == len(set(offered))
        assert set(offered) == set(waiting) or len(offered) == 1
        assert len(bench.queue) == len(waiting)
        assert bench.queue.num_tokens == sum(r.num_tokens for r in waiting.values())
    for request in (waiting | running).values():
        bench.queue.remove(request)
    assert bench.order() == []
    assert not list(bench.queue.tenants.waiting)


def expected_order(bench: Bench, waiting: list[Request]) -> list[str]:
    """Work out the order in the plainest way: rounds of eligible tenants, each sorted by rank."""
    counters = bench.queue.tenants
    names: list[str] = []
    left = list(waiting)
    while left:
        limit = min(counters.counter(r.tenant_index) for r in left) + 2 * BUDGET
        turn = [r for r in left if counters.counter(r.tenant_index) <= limit]
        names += [r.request_id for r in sorted(turn, key=lambda r: r.rank or ())]
        left = [r for r in left if r not in turn]
    return names


@given(
    policy=st.sampled_from(["fifo", "sjf", "priority", "slo"]),
    requests=st.lists(
        st.tuples(st.integers(1, 2000), st.sampled_from("abcdef"), st.integers(0, 2), st.floats(0.5, 60)),
        max_size=30,
    ),
    taken=st.lists(st.integers(0, 29), max_size=15, unique=True),
)
@examples(150)
def test_the_order_is_that_of_rounds_of_eligible_tenants_sorted_by_rank(
    policy: str, requests: list[tuple[int, str, int, float]], taken: list[int]
) -> None:
    bench = Bench(policy=policy)
    waiting: list[Request] = []
    for index, (tokens, tenant, priority, ttft) in enumerate(requests):
        bench.now = 0.1 * index
        waiting.append(bench.add(f"r{index}", tokens=tokens, tenant=tenant, priority=priority, ttft=ttft))
    for request in [waiting[index] for index in taken if index < len(waiting)]:
        bench.queue.take(request, bench.now)
        waiting.remove(request)
        assert [e.request.request_id for e in bench.queue._ranking.entries()] == expected_order(
            bench, waiting
        )
    for request in waiting[::3]:
        bench.queue.remove(request)
        waiting.remove(request)
    bench.now += 20.0
    bench.queue.refresh(bench.now)
    assert [e.request.request_id for e in bench.queue._ranking.entries()] == expected_order(bench, waiting)


@given(
    policy=st.sampled_from(["sjf", "priority", "slo"]),
    tokens=st.integers(1, 2000),
    stream=st.integers(1, 300),
)
@examples(40)
def test_nobody_starves_beside_an_endless_stream_of_better_ranked_requests(
    policy: str, tokens: int, stream: int
) -> None:
    bench = Bench(policy=policy)
    bench.add("poor", tokens=tokens, outputs=5000, priority=9, ttft=1e-3)
    most_steps = 9 * tokens // stream + 9
    for step in range(most_steps):
        bench.now += 0.001
        bench.add(f"rich-{step}", tokens=stream, outputs=1, ttft=1.0)
        if bench.take()[0].request_id == "poor":
            return
    pytest.fail(f"not admitted within {most_steps} steps")
