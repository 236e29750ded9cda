from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_engine.errors import InvalidConfig, InvalidRequest, Overloaded
from tidemill_engine.queue_limits import (
    MOST_RETRY_SECONDS,
    UNKNOWN_RETRY_SECONDS,
    DrainRate,
    QueueLimits,
    QueueMeter,
    retry_after,
)


def make_meter(*, requests: int = 100, tokens: int | None = None) -> QueueMeter:
    return QueueMeter(QueueLimits(max_requests=requests, max_waiting_tokens=tokens))


def refusal(
    meter: QueueMeter, *, requests: int = 1, tokens: int = 10, now: float = 0.0, tenant: str = ""
) -> int | None:
    """Return the Retry-After of a refusal, or None where there is room."""
    try:
        meter.require_room(requests, tokens, now, tenant=tenant)
    except Overloaded as error:
        return int(error.retry_after_seconds)
    return None


def test_requests_beyond_the_limit_are_refused_and_one_that_ends_makes_room() -> None:
    meter = make_meter(requests=2)
    meter.enter("a", 10)
    meter.enter("b", 10)
    assert refusal(meter) == UNKNOWN_RETRY_SECONDS
    meter.start("a", 1.0)
    assert refusal(meter, now=1.0) is not None, "a running request counts, too"
    meter.leave("a", 2.0)
    meter.leave("a", 2.0)
    assert refusal(meter, now=2.0) is None


def test_more_sequences_than_may_ever_be_in_flight_are_refused_for_good_with_both_numbers() -> None:
    meter = make_meter(requests=2)
    assert refusal(meter, requests=2) is None
    with pytest.raises(InvalidRequest, match=r"3 sequences .* more than the 2"):
        meter.require_room(3, 10, 0.0)


def test_only_prompts_that_wait_count_towards_the_token_limit() -> None:
    meter = make_meter(tokens=100)
    meter.enter("a", 80)
    assert refusal(meter, tokens=21) is not None
    assert refusal(meter, tokens=20) is None
    meter.start("a", 1.0)
    meter.start("a", 1.0)
    assert meter.num_waiting_tokens == 0
    assert refusal(meter, tokens=100, now=1.0) is None


def test_a_prompt_over_the_whole_limit_is_taken_when_nobody_waits() -> None:
    meter = make_meter(tokens=100)
    assert refusal(meter, tokens=5000) is None
    meter.enter("a", 5000)
    assert refusal(meter, tokens=1) is not None


def test_a_tenant_that_fills_the_queue_does_not_shut_out_another_one() -> None:
    meter = make_meter(requests=8)
    for index in range(8):
        meter.enter(f"loud-{index}", 10, tenant="loud")
    assert refusal(meter, tenant="loud") is not None
    for index in range(2):
        assert refusal(meter, tenant="quiet") is None
        meter.enter(f"quiet-{index}", 10, tenant="quiet")
    assert refusal(meter, tenant="quiet") is not None, "what is kept for others has a bound, too"
    meter.leave("quiet-0", 1.0)
    assert refusal(meter, tenant="loud") is not None, "and it is not for those who have filled the rest"
    assert refusal(meter, tenant="quiet") is None


def test_a_tenant_with_its_even_share_gets_nothing_of_what_is_kept_for_others() -> None:
    meter = make_meter(requests=8)
    for index in range(8):
        meter.enter(str(index), 10, tenant=("red", "blue")[index % 2])
    assert refusal(meter, tenant="red") is not None
    assert refusal(meter, requests=2, tenant="green") is None
    assert refusal(meter, requests=3, tenant="green") is not None


def test_a_tenant_whose_prompts_fill_the_queue_does_not_shut_out_another_one() -> None:
    meter = make_meter(tokens=100)
    meter.enter("a", 100, tenant="loud")
    assert refusal(meter, tokens=1, tenant="loud") is not None
    assert refusal(meter, tokens=25, tenant="quiet") is None
    assert refusal(meter, tokens=26, tenant="quiet") is not None
    meter.start("a", 1.0)
    meter.enter("b", 100, tenant="quiet")
    assert refusal(meter, tokens=1, tenant="quiet") is not None
    assert refusal(meter, tokens=25, tenant="loud") is None, "what has started waits no more"


def test_retry_after_is_the_time_that_the_queue_needs_at_its_measured_rate() -> None:
    meter = make_meter(tokens=1000)
    for second in range(60):
        meter.enter(f"r{second}", 100)
        meter.start(f"r{second}", float(second))
    meter.enter("waiting", 1000)
    seconds = refusal(meter, tokens=700, now=59.5)
    assert seconds is not None
    assert 6 <= seconds <= 8


def test_a_drain_that_has_stopped_promises_less_and_less() -> None:
    rate = DrainRate()
    assert rate.per_second(0.0) == 0.0
    for second in range(30):
        rate.add(10, float(second))
    assert rate.per_second(30.0) == pytest.approx(10, rel=0.15)
    assert rate.per_second(90.0) < 1


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_retry_after_is_always_a_sensible_number_of_seconds(excess: float, per_second: float) -> None:
    assert 1 <= retry_after(excess, per_second) <= MOST_RETRY_SECONDS


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "start", "leave"]), st.integers(0, 5), st.integers(0, 99)))
)
def test_nothing_is_left_on_the_meter_when_all_have_left(steps: list[tuple[str, int, int]]) -> None:
    meter = make_meter()
    inside: dict[str, int] = {}
    for kind, number, tokens in steps:
        name = str(number)
        if kind == "enter" and name not in inside:
            inside[name] = tokens
            meter.enter(name, tokens)
        elif kind == "start" and name in inside:
            meter.start(name, 0.0)
        elif kind == "leave" and name in inside:
            del inside[name]
            meter.leave(name, 0.0)
        assert 0 <= meter.num_waiting_tokens <= sum(inside.values())
    for name in inside:
        meter.leave(name, 0.0)
    assert meter.num_waiting_tokens == 0
    assert refusal(meter, requests=100) is None


def test_a_token_limit_under_one_is_refused_with_its_value() -> None:
    with pytest.raises(InvalidConfig, match="max_num_queued_tokens must be >= 1, not 0"):
        QueueLimits(max_requests=1, max_waiting_tokens=0)
