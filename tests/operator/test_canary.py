"""When a canary is stopped, and how large it is."""

from __future__ import annotations

import pytest

from operator_builders import make_pod, make_termination, ready_pods
from tidemill_operator.canary import Answers, answers_of, find_reason_to_stop, size_of
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import PodView
from tidemill_operator.spec import CanarySpec

CANARY = CanarySpec(traffic_percent=10)
NOTHING = Answers(answered=0, failed=0)
CRASHED = make_pod("new", termination=make_termination(message="out of luck"))
UNSCHEDULED = make_pod(
    "new", is_scheduled=False, unscheduled_message="0/1 nodes: 1 Insufficient nvidia.com/gpu."
)

CASES: dict[str, tuple[tuple[PodView, ...], Answers, Answers, str | None]] = {
    "a canary that is ready and answers goes on": (
        ready_pods("new", 1),
        Answers(answered=500, failed=3),
        NOTHING,
        None,
    ),
    "a canary that is loading goes on": ((make_pod("new"),), NOTHING, NOTHING, None),
    "a canary whose replica crashed is stopped": ((CRASHED,), NOTHING, NOTHING, "CrashLoopBackOff"),
    "one crashed replica beside a ready one stops it": (
        (*ready_pods("new", 1), make_pod("new", 7, termination=make_termination())),
        NOTHING,
        NOTHING,
        "CrashLoopBackOff",
    ),
    "a crash that was overcome does not": (
        (make_pod("new", is_ready=True, termination=make_termination()),),
        NOTHING,
        NOTHING,
        None,
    ),
    "lack of room does not": ((UNSCHEDULED,), NOTHING, NOTHING, None),
    "too many failures stop it": (
        ready_pods("new", 1),
        Answers(answered=100, failed=6),
        Answers(answered=900, failed=9),
        "CanaryErrors",
    ),
    "as many failures as are allowed do not": (
        ready_pods("new", 1),
        Answers(answered=100, failed=5),
        NOTHING,
        None,
    ),
    "a few answers say nothing": (ready_pods("new", 1), Answers(answered=19, failed=19), NOTHING, None),
    "failures that the current revision has as well do not stop it": (
        ready_pods("new", 1),
        Answers(answered=100, failed=30),
        Answers(answered=100, failed=31),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_judges_so_that(case: str) -> None:
    pods, update, current, expected = CASES[case]
    failure = find_reason_to_stop(pods, update, current, CANARY, 600)
    assert (failure.reason if failure is not None else None) == expected


def test_says_the_numbers_by_which_it_stopped() -> None:
    failure = find_reason_to_stop(
        ready_pods("new", 1), Answers(answered=100, failed=40), Answers(answered=50, failed=1), CANARY, 600
    )
    assert failure is not None
    assert "40 of 100 requests failed" in failure.message
    assert "maxErrorPercent (5)" in failure.message
    assert "(2 %)" in failure.message


def test_adds_up_only_the_engines_that_answered() -> None:
    one, other = ready_pods("new", 2)
    loads = {one.uid: EngineLoad(num_answered=7, num_failed=1), other.uid: None}
    assert answers_of((one, other), loads) == Answers(answered=7, failed=1)


@pytest.mark.parametrize(
    ("desired", "percent", "size"), [(1, 10, 1), (10, 10, 1), (11, 10, 2), (4, 50, 2), (0, 10, 0)]
)
def test_is_as_large_as_its_share_rounded_up(desired: int, percent: int, size: int) -> None:
    assert size_of(CanarySpec(traffic_percent=percent), desired) == size
