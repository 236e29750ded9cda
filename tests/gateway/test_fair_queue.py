"""Who is next: weighted fair between tenants, whatever they do."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidemill_gateway.fair_queue import FairQueue, Share


def drain(queue: FairQueue[str], num: int) -> list[str]:
    return [item for _ in range(num) if (item := queue.pop()) is not None]


def test_one_tenant_is_served_in_the_order_of_arrival() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in "abc":
        queue.push(item, Share(tenant="one"))
    assert drain(queue, 5) == ["a", "b", "c"]
    assert not queue


def test_a_tenant_with_a_hundred_waiting_does_not_delay_another_ones_first() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push("many", Share(tenant="many"))
    queue.push("few", Share(tenant="few"))
    assert "few" in drain(queue, 2)


def test_a_weight_of_three_gets_three_times_as_much() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push("heavy", Share(tenant="heavy", weight=3))
        queue.push("light", Share(tenant="light"))
    assert Counter(drain(queue, 80)) == {"heavy": 60, "light": 20}


def test_tokens_are_shared_and_not_requests() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push("long", Share(tenant="long", cost=1000))
        queue.push("short", Share(tenant="short", cost=100))
    assert Counter(drain(queue, 55)) == {"short": 50, "long": 5}


def test_keeping_only_one_waiting_request_at_a_time_wins_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(200):
        queue.push("steady", Share(tenant="steady", cost=10))
    served = []
    queue.push("sly", Share(tenant="sly", cost=100))
    for _ in range(110):
        item = queue.pop()
        served.append(item)
        if item == "sly":
            queue.push("sly", Share(tenant="sly", cost=100))
    assert served.count("sly") == 10


def test_having_been_away_earns_no_credit() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push("old", Share(tenant="old"))
    drain(queue, 50)
    for _ in range(50):
        queue.push("new", Share(tenant="new"))
    assert Counter(drain(queue, 20)) == {"old": 10, "new": 10}


def test_who_gives_up_leaves_the_queue_and_pays_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    tickets = [queue.push(f"a{i}", Share(tenant="a", cost=1000)) for i in range(3)]
    queue.push("b", Share(tenant="b"))
    assert queue.remove(tickets[0], "a")
    assert not queue.remove(tickets[0], "a")
    assert len(queue) == 3
    assert drain(queue, 3) == ["a1", "b", "a2"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "pop", "remove"]),
            st.sampled_from("abc"),
            st.integers(1, 50),
            st.integers(1, 9),
        ),
        max_size=200,
    )
)
def test_nothing_is_lost_and_nothing_comes_twice(steps: list[tuple[str, str, int, int]]) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, tuple[int, str]] = {}
    for number, (step, tenant, cost, weight) in enumerate(steps):
        if step == "push":
            waiting[number] = (queue.push(number, Share(tenant=tenant, cost=cost, weight=weight)), tenant)
        elif step == "pop":
            item = queue.pop()
            assert (item is None) == (not waiting)
            if item is not None:
                del waiting[item]
        elif waiting:
            ticket, owner = waiting.pop(next(iter(waiting)))
            assert queue.remove(ticket, owner)
        assert len(queue) == len(waiting)
        for name in "abc":
            assert queue.num_of(name) == sum(owner == name for _, owner in waiting.values())
