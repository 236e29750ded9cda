"""What holds of the queue whatever happens to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from tidemill_engine.request import Request
from waiting_bench import BUDGET, Bench

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
