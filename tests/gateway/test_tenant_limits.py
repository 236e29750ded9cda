"""What each tenant may ask for."""

from hypothesis import given
from hypothesis import strategies as st

from tidemill_gateway.service_spec import Limits
from tidemill_gateway.tenant_limits import Refused, TenantLimits

KEY = ("uid", "team")


def test_no_limit_refuses_nobody() -> None:
    limits = TenantLimits()
    assert all(limits.enter(KEY, Limits(), 0.0, 1) is None for _ in range(1000))


def test_a_minutes_worth_may_come_at_once_and_then_the_rate_holds() -> None:
    limits, sixty = TenantLimits(), Limits(requests_per_minute=60)
    assert [limits.enter(KEY, sixty, 0.0, 1) for _ in range(60)] == [None] * 60
    assert limits.enter(KEY, sixty, 0.0, 1) == Refused(reason="60 requests per minute", retry_after_seconds=1)
    assert limits.enter(KEY, sixty, 1.0, 1) is None
    assert limits.enter(KEY, sixty, 1.0, 1) is not None


def test_gateways_split_a_limit_evenly() -> None:
    limits, ten = TenantLimits(), Limits(requests_per_minute=10, max_concurrent_requests=3)
    let_in = [limits.enter(KEY, ten, 0.0, 2) is None for _ in range(5)]
    assert let_in == [True, True, False, False, False]  # 3 at once is 2 for each of two gateways
    for _ in range(2):
        limits.leave(KEY, 0)
    assert sum(limits.enter(KEY, ten, 0.0, 2) is None for _ in range(2)) == 2
    for _ in range(2):
        limits.leave(KEY, 0)
    assert limits.enter(KEY, ten, 0.0, 2) is None  # the fifth of five
    limits.leave(KEY, 0)
    refused = limits.enter(KEY, ten, 0.0, 2)
    assert refused is not None
    assert refused.reason == "10 requests per minute"


def test_an_answer_of_many_tokens_delays_the_next_request() -> None:
    limits, tokens = TenantLimits(), Limits(tokens_per_minute=600)
    assert limits.enter(KEY, tokens, 0.0, 1) is None
    limits.leave(KEY, 1200)
    refused = limits.enter(KEY, tokens, 0.0, 1)
    assert refused is not None
    assert refused.retry_after_seconds == 61
    assert limits.enter(KEY, tokens, 59.0, 1) is not None
    assert limits.enter(KEY, tokens, 61.0, 1) is None


def test_tenants_and_services_do_not_share_limits() -> None:
    limits, one = TenantLimits(), Limits(max_concurrent_requests=1)
    for key in (KEY, ("uid", "other"), ("other", "team")):
        assert limits.enter(key, one, 0.0, 1) is None
    assert limits.enter(KEY, one, 0.0, 1) is not None


@given(st.lists(st.floats(0, 5), min_size=1, max_size=200), st.integers(1, 100), st.integers(1, 4))
def test_over_any_time_no_more_come_in_than_the_rate_and_one_minutes_worth(
    gaps: list[float], per_minute: int, num_gateways: int
) -> None:
    limits, now, num_in = TenantLimits(), 0.0, 0
    for gap in gaps:
        now += gap
        if limits.enter(KEY, Limits(requests_per_minute=per_minute), now, num_gateways) is None:
            num_in += 1
            limits.leave(KEY, 5)
    share = max(per_minute / num_gateways, 1.0)
    assert num_in <= share + share * now / 60 + 1e-6


def test_a_service_that_is_gone_takes_its_levels_along() -> None:
    limits, one = TenantLimits(), Limits(requests_per_minute=1)
    limits.enter(KEY, one, 0.0, 1)
    assert limits.enter(KEY, one, 0.0, 1) is not None
    limits.forget_all_but({"another"})
    assert limits.enter(KEY, one, 0.0, 1) is None
