"""Loads and failures of replicas as one gateway knows them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_gateway.ledger import STALE_SECONDS, Ledger
from tidemill_gateway.load_report import LoadReport, parse_load
from tidemill_gateway.outliers import Outliers

HEADER = "running=3 waiting=1 kv=0.4123 tokens=5120"
REPORT = LoadReport(num_running=3, num_waiting=1, kv_usage_ratio=0.4123, num_tokens=5120)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_ledger(clock: Clock) -> Ledger:
    return Ledger(clock=clock, suspect_seconds=5.0)


def test_the_header_of_an_engine_becomes_a_report() -> None:
    assert parse_load(HEADER) == REPORT


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "running=3",
        "running=x waiting=1 kv=0 tokens=1",
        "running=3 waiting=1 kv=nan tokens=1",
        "running=3 waiting=-1 kv=0 tokens=1",
        HEADER * 9,
        "\x00",
        "====",
    ],
)
def test_a_header_that_makes_no_sense_counts_as_none(header: str | None) -> None:
    assert parse_load(header) is None


def test_a_report_is_used_while_it_is_new() -> None:
    clock = Clock()
    ledger = make_ledger(clock)
    with ledger.hold("a", 10):
        ledger.report("a", REPORT)
        with ledger.hold("a", 20):
            (candidate,) = ledger.candidates(["a"], is_alone=False)
            assert (candidate.report, candidate.num_own_then) == (REPORT, 1)
            assert (candidate.num_own_requests, candidate.num_own_tokens) == (2, 30)
            assert candidate.is_fresh
    clock.now += STALE_SECONDS + 1
    (candidate,) = ledger.candidates(["a"], is_alone=False)
    assert (candidate.report, candidate.is_fresh) == (None, False)


def test_a_gateway_that_is_alone_knows_all_there_is() -> None:
    (candidate,) = make_ledger(Clock()).candidates(["a"], is_alone=True)
    assert candidate.is_fresh


@given(st.lists(st.integers(0, 100), max_size=20))
def test_what_was_held_is_given_back(tokens: list[int]) -> None:
    ledger = make_ledger(Clock())
    for num in tokens:
        with ledger.hold("a", num), ledger.hold("b", num):
            pass
    assert not ledger.in_flight


def test_each_failure_in_a_row_doubles_the_time_and_one_success_ends_it() -> None:
    outliers = Outliers(first_seconds=5, max_seconds=60)
    now, lengths = 0.0, []
    for _ in range(6):
        outliers.fail("a", now)
        start = now
        while "a" in outliers.avoided(now):
            now += 1
        lengths.append(now - start)
    assert lengths == [5, 10, 20, 40, 60, 60]
    outliers.fail("a", now)
    outliers.succeed("a", now)
    assert not outliers.avoided(now)
    outliers.fail("a", now)
    assert not outliers.avoided(now + 5)


def test_the_good_end_of_a_request_that_began_before_a_failure_proves_nothing() -> None:
    outliers = Outliers(first_seconds=5, max_seconds=60)
    outliers.fail("a", 10.0)
    outliers.succeed("a", began=9.0)
    assert outliers.avoided(11.0)
    outliers.fail("a", 12.0)  # while it is avoided, which lengthens nothing
    outliers.succeed("a", began=11.0)
    assert outliers.avoided(13.0)
    assert not outliers.avoided(15.0)
    outliers.succeed("a", began=12.0)
    outliers.fail("a", 20.0)
    assert not outliers.avoided(25.0), "it was forgiven, so this failure is again the first"


def test_failures_of_requests_that_were_under_way_together_count_once() -> None:
    outliers = Outliers(first_seconds=5, max_seconds=60)
    for moment in (0.0, 0.1, 0.2):
        outliers.fail("a", moment)
    assert outliers.avoided(4.9)
    assert not outliers.avoided(5.0)


def test_replicas_that_are_gone_are_forgotten() -> None:
    clock = Clock()
    ledger = make_ledger(clock)
    ledger.report("a", REPORT)
    ledger.suspect("a")
    ledger.forget_all_but({"b"})
    assert ledger.seconds_since_report("a") == float("inf")
    assert not ledger.suspects
