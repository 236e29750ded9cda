"""The choice of a replica, as tables and as a property."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.builders import parsed_pod
from tidemill_gateway.choice import choose

A, B, C = (parsed_pod(name) for name in "abc")


def test_the_replica_with_the_fewest_requests_gets_the_next() -> None:
    assert choose([A, B, C], {A.uid: 2, B.uid: 1, C.uid: 3}, turn=0) == B


def test_ties_go_round() -> None:
    chosen = [choose([A, B, C], {C.uid: 1}, turn=turn) for turn in range(4)]
    assert chosen == [A, B, A, B]


def test_what_was_tried_is_not_tried_again() -> None:
    assert choose([A, B], {B.uid: 9}, turn=0, tried={A.uid}) == B
    assert choose([A, B], {}, turn=0, tried={A.uid, B.uid}) is None


def test_suspects_are_chosen_only_when_nothing_else_is_left() -> None:
    assert choose([A, B], {B.uid: 9}, turn=0, suspects={A.uid}) == B
    assert choose([A, B], {}, turn=0, suspects={A.uid}, tried={B.uid}) == A


def test_without_replicas_there_is_no_choice() -> None:
    assert choose([], {}, turn=0) is None


@pytest.mark.parametrize(
    "state",
    [
        {"ready": False},
        {"routable": "false"},
        {"routable": ""},
        {"terminating": True},
        {"address": ""},
    ],
)
def test_a_replica_that_takes_no_requests_is_never_chosen(state: dict[str, Any]) -> None:
    assert choose([parsed_pod("x", **state)], {}, turn=0) is None


@given(
    loads=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    able=st.lists(st.booleans(), min_size=6, max_size=6),
    turn=st.integers(0, 1000),
)
def test_the_choice_is_always_among_the_able_ones_with_the_least(
    loads: list[int], able: list[bool], turn: int
) -> None:
    pods = [parsed_pod(f"p{i}", ready=able[i]) for i in range(len(loads))]
    in_flight = {pod.uid: load for pod, load in zip(pods, loads, strict=True)}
    chosen = choose(pods, in_flight, turn=turn)
    ready = [pod for pod in pods if pod.ready]
    if not ready:
        assert chosen is None
    else:
        assert chosen in ready
        assert in_flight[chosen.uid] == min(in_flight[pod.uid] for pod in ready)
