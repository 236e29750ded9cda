"""Pace, windows, schedules, percentiles, arrivals and capacity: the parts that decisions are made of."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoscaling_builders import STEP_TIMES, make_policy
from tidemill_operator.autoscaling import behavior, objectives
from tidemill_operator.autoscaling.arrivals import ArrivalRate, arrival_rate
from tidemill_operator.autoscaling.capacity import Limits, Work, by_speeds, by_step_times
from tidemill_operator.autoscaling.memory import Arrivals, LatencyWindow, Memory
from tidemill_operator.autoscaling.percentiles import percentile, share_within
from tidemill_operator.autoscaling.policy import Behavior, PacePolicy, ScalingRules, Schedule
from tidemill_operator.autoscaling.schedules import active, latest_start, parse_cron
from tidemill_operator.autoscaling.staffing import (
    allowed_share,
    first_utilization,
    late_price,
    replicas_for,
    replicas_to_catch_up,
)

BOUNDS = (0.1, 0.5, 1.0, math.inf)
CHAT = Work(prompt=1100.0, uncached=1100.0, output=210.0)
LIMITS = Limits(max_num_seqs=48.0, capacity_tokens=64_000.0)


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def schedule(cron: str, *, timezone: str = "UTC", hours: float = 1.0, replicas: int = 3) -> Schedule:
    return Schedule(
        name="s", timezone=timezone, cron=cron, duration_seconds=hours * 3600, min_replicas=replicas
    )


@pytest.mark.parametrize(
    ("policies", "select", "current", "wanted", "allowed"),
    [
        ([("Pods", 2, 60)], "Max", 4, 20, 6),
        ([("Percent", 100, 60)], "Max", 4, 20, 8),
        ([("Pods", 2, 60), ("Percent", 100, 60)], "Max", 4, 20, 8),
        ([("Pods", 2, 60), ("Percent", 100, 60)], "Min", 4, 20, 6),
        ([("Percent", 10, 60)], "Max", 4, 20, 5),
        ([("Pods", 2, 60)], "Max", 9, 1, 7),
        ([("Percent", 50, 60)], "Max", 9, 1, 4),
        ([("Pods", 2, 60), ("Percent", 50, 60)], "Max", 9, 1, 4),
        ([("Pods", 2, 60), ("Percent", 50, 60)], "Min", 9, 1, 7),
        ([], "Disabled", 4, 20, 4),
        ([], "Max", 4, 20, 20),
    ],
)
def test_pace_follows_the_policies_of_autoscaling_v2(
    policies: list[tuple[str, int, int]], select: str, current: int, wanted: int, allowed: int
) -> None:
    rules = ScalingRules(
        select_policy=select,  # type: ignore[arg-type]
        policies=tuple(PacePolicy(kind=k, value=v, period_seconds=p) for k, v, p in policies),  # type: ignore[arg-type]
    )
    both = Behavior(scale_up=rules, scale_down=rules)
    assert behavior.paced(current, wanted, (), 0.0, both).replicas == allowed


def test_changes_within_the_period_use_up_the_pace() -> None:
    rules = ScalingRules(policies=(PacePolicy(kind="Pods", value=3, period_seconds=60),))
    both = Behavior(scale_up=rules)
    assert behavior.paced(6, 20, ((90.0, 2),), 100.0, both).replicas == 7
    assert behavior.paced(6, 20, ((30.0, 2),), 100.0, both).replicas == 9


@given(values=st.lists(st.integers(1, 9), min_size=1, max_size=40), current=st.integers(1, 9))
def test_a_window_never_goes_below_what_was_wanted_in_it_nor_beyond_what_is_wanted_now(
    values: list[int], current: int
) -> None:
    moments: behavior.Moments = ()
    for at, value in enumerate(values):
        moments = behavior.remember(moments, float(at), value, 1000.0)
    window = behavior.Windows(up=0.0, down=1000.0)
    after = behavior.stabilized(current, values[-1], values[-1], (moments, moments), window).replicas
    assert min(current, values[-1]) <= after <= max(current, values[-1])
    if after < current:
        assert after >= max(values)


@pytest.mark.parametrize(
    ("cron", "moment", "is_active"),
    [
        ("0 8 * * *", "2026-11-30T08:00:00", True),
        ("0 8 * * *", "2026-11-30T08:59:59", True),
        ("0 8 * * *", "2026-11-30T09:00:00", False),
        ("0 8 * * 1-5", "2026-11-29T08:30:00", False),
        ("0 8 * * mon-fri", "2026-11-30T08:30:00", True),
        ("0 8 * * 7", "2026-11-29T08:30:00", True),
        ("*/15 * * * *", "2026-11-30T03:20:00", True),
        ("0 8 1,15 * *", "2026-11-30T08:30:00", False),
        ("0 8 30 * 0", "2026-11-30T08:30:00", True),
        ("0 0 1 jan *", "2027-01-01T00:10:00", True),
    ],
)
def test_a_schedule_runs_for_its_duration_from_each_time_that_cron_names(
    cron: str, moment: str, is_active: bool
) -> None:
    found = active((schedule(cron, hours=0.25 if cron.startswith("*/15") else 1.0),), unix(moment))
    assert (found is not None) == is_active


def test_schedules_know_their_time_zone_in_summer_and_winter() -> None:
    berlin = schedule("0 8 * * *", timezone="Europe/Berlin")
    assert active((berlin,), unix("2026-07-01T06:30:00")) is not None
    assert active((berlin,), unix("2026-12-01T06:30:00")) is None
    assert active((berlin,), unix("2026-12-01T07:30:00")) is not None


def test_of_several_schedules_the_one_with_the_most_replicas_counts() -> None:
    many = (schedule("0 * * * *", replicas=2), schedule("0 8 * * *", replicas=5))
    found = active(many, unix("2026-11-30T08:30:00"))
    assert found is not None
    assert found.min_replicas == 5


def test_a_schedule_may_last_over_days() -> None:
    assert latest_start("0 18 * * 5", "UTC", unix("2026-11-30T06:00:00"), 62 * 3600) == unix(
        "2026-11-27T18:00:00"
    )


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "60 * * * *", "* 24 * * *", "5-1 * * * *", "*/0 * * * *", "x * * * *"]
)
def test_a_wrong_expression_is_refused_with_the_field(cron: str) -> None:
    with pytest.raises(ValueError, match=r"fields|must|not a number|minute|hour"):
        parse_cron(cron)


def test_percentiles_abstain_below_fifty_observations() -> None:
    few = LatencyWindow(upper_bounds_seconds=BOUNDS, counts=(40.0, 9.0, 0.0, 0.0))
    assert percentile(few, 95) is None
    assert share_within(few, 1.0) is None
    assert percentile(None, 95) is None


def test_percentiles_lie_evenly_in_their_bucket_and_at_the_start_of_the_endless_one() -> None:
    window = LatencyWindow(upper_bounds_seconds=BOUNDS, counts=(50.0, 40.0, 0.0, 10.0))
    assert percentile(window, 50) == pytest.approx(0.1)
    assert percentile(window, 70) == pytest.approx(0.3)
    assert percentile(window, 99) == pytest.approx(1.0)
    assert share_within(window, 0.5) == pytest.approx(0.9)


def samples(*counts: float, seconds: float = 5.0) -> tuple[Arrivals, ...]:
    return tuple(
        Arrivals(at=(i + 1) * seconds, seconds=seconds, requests=c, prompt_tokens=100 * c)
        for i, c in enumerate(counts)
    )


def rate_of(*counts: float) -> ArrivalRate:
    rate = arrival_rate(samples(*counts), 5.0 * len(counts), 100.0)
    assert rate is not None
    return rate


def test_a_steady_rise_is_led_on_to_when_new_pods_are_ready_and_a_jump_is_not() -> None:
    rise = rate_of(*[10 + i / 2 for i in range(60)])
    assert rise.forecast > rise.measured > 38 / 5
    jump = rate_of(*([10.0] * 30), *([40.0] * 30))
    assert jump.forecast == jump.measured == pytest.approx(8.0)


def test_a_fall_is_seen_in_seconds_also_after_a_jump_up() -> None:
    burst = rate_of(*([10.0] * 30), *([40.0] * 20), *([10.0] * 4))
    assert burst.measured == pytest.approx(2.0)


def test_what_a_constant_load_is_taken_for_is_not_more_than_it_is_and_gets_surer_by_the_minute() -> None:
    short, long = rate_of(*([20.0, 30.0] * 12)), rate_of(*([20.0, 30.0] * 180))
    for rate in (short, long):
        assert rate.is_level
        assert rate.forecast == rate.measured == pytest.approx(5.0)
    assert long.error < short.error / 3


def test_a_few_requests_more_by_chance_are_no_jump_and_many_are() -> None:
    few = rate_of(*([3.0] * 178), 9.0, 9.0)
    assert few.measured < 1.0
    many = rate_of(*([30.0] * 178), 90.0, 90.0)
    assert many.measured == pytest.approx(18.0)


def test_a_longer_window_counts_only_while_it_is_level() -> None:
    rate = rate_of(*([10.0] * 120), *([20.0] * 100))
    assert rate.measured == pytest.approx(4.0)


@example([0.0, 1e-180])
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=400))
def test_whatever_arrives_the_rate_is_a_number_and_its_bounds_are_in_order(counts: list[float]) -> None:
    rate = rate_of(*counts)
    assert 0 <= rate.measured <= rate.forecast
    assert rate.error > 0
    assert rate.least <= max(counts) / 5 + 1e-6
    assert rate.most >= min(counts) / 5 - 1e-6


@pytest.mark.parametrize("one", [0.4, 0.67, 0.95])
def test_larger_fleets_may_be_fuller_and_carry_what_they_are_asked_for(one: float) -> None:
    shares = [allowed_share(one, n) for n in (1, 2, 5, 20)]
    assert shares == sorted(shares)
    for tenths in range(1, 300):
        full = tenths / 10
        count = replicas_for(full, one)
        assert full <= count * allowed_share(one, count) + 1e-6
        assert count == 1 or full > (count - 1) * allowed_share(one, count - 1) - 1e-6


def test_a_longer_backlog_or_a_busier_service_deserves_more_replicas_and_none_deserves_none() -> None:
    assert replicas_to_catch_up(0.0, 3.0, 150.0) == 0.0
    short, long, busy = (replicas_to_catch_up(b, f, 150.0) for b, f in ((50, 2), (200, 2), (50, 8)))
    assert short < long
    assert short < busy


def test_a_replicas_capacity_is_where_its_first_limit_binds() -> None:
    roomy = by_step_times(STEP_TIMES, CHAT, LIMITS, make_policy())
    tight = by_step_times(STEP_TIMES, CHAT, Limits(max_num_seqs=4, capacity_tokens=64_000), make_policy())
    assert tight.limit == "slots"
    assert tight.requests_per_second < roomy.requests_per_second
    assert tight.concurrency == pytest.approx(4.0)


def test_cached_prompts_leave_room_for_more_requests() -> None:
    cached = Work(prompt=1100.0, uncached=100.0, output=210.0)
    first, second = (by_step_times(STEP_TIMES, work, LIMITS, make_policy()) for work in (CHAT, cached))
    assert second.requests_per_second > first.requests_per_second


def test_measured_speeds_do_where_an_engine_does_not_tell_its_step_times() -> None:
    capacity = by_speeds(4000.0, 1000.0, CHAT, LIMITS, make_policy())
    assert capacity.requests_per_second == pytest.approx(1 / (1100 / 4000 + 210 / 1000))


def test_a_stricter_percentile_keeps_more_room_and_pays_more_for_a_request_in_time() -> None:
    percentiles = (50, 90, 95, 99)
    rooms = [first_utilization(p) for p in percentiles]
    prices = [late_price(p) for p in percentiles]
    assert rooms == sorted(rooms, reverse=True)
    assert prices == sorted(prices)
    assert all(0.4 <= room <= 0.9 for room in rooms)


def window_of(*counts: float) -> LatencyWindow:
    return LatencyWindow(upper_bounds_seconds=(1.0, 2.0, math.inf), counts=counts)


def test_what_a_change_made_late_teaches_nothing_of_how_full_a_fleet_may_be() -> None:
    policy = make_policy()
    late = Memory(settled_first=window_of(0.0, 0.0, 200.0), last_change=1000.0)
    limit = policy.slo.time_to_first_token_seconds
    assert limit is not None
    assert objectives.pressure(late, policy) is not None
    assert objectives.since_settled(late, 1080.0).settled_first is None
    assert objectives.since_settled(late, 1100.0) == late


def arrivals_at(*rates: tuple[float, float]) -> tuple[Arrivals, ...]:
    """Return samples of 5 s, without noise: pairs of (seconds, requests a second)."""
    samples, now = [], 0.0
    for seconds, rate in rates:
        for _ in range(int(seconds / 5)):
            now += 5.0
            samples.append(Arrivals(at=now, seconds=5.0, requests=5 * rate, prompt_tokens=500 * rate))
    return tuple(samples)


@pytest.mark.parametrize("levels", [(2.6, 3.5), (3.5, 2.6)])
def test_a_small_slope_after_a_long_level_is_taken_for_noise_sooner_than_one_after_a_short_one(
    levels: tuple[float, float],
) -> None:
    slope = ((150.0, levels[0]), (150.0, levels[1]))
    long, short = arrivals_at((900.0, 3.0), *slope), arrivals_at(*slope)
    found = [arrival_rate(samples, samples[-1].at, 95.0) for samples in (long, short)]
    assert [rate.is_level for rate in found if rate is not None] == [True, False]


def test_a_level_of_less_than_a_quarter_of_an_hour_counts_as_much_while_it_is_all_that_was_measured() -> None:
    samples = arrivals_at((300.0, 3.0), (150.0, 2.6), (150.0, 3.5))
    found = arrival_rate(samples, samples[-1].at, 95.0)
    assert found is not None
    assert found.is_level


def test_a_dip_at_the_end_of_a_long_level_is_part_of_it_as_long_as_it_may_be_noise() -> None:
    dip, fall, jumps = (
        arrivals_at((900.0, 3.0), (15.0, 2.0)),
        arrivals_at((900.0, 3.0), (120.0, 1.0)),
        arrivals_at((300.0, 1.0), (300.0, 4.0), (15.0, 2.0)),
    )
    found = [arrival_rate(samples, samples[-1].at, 95.0) for samples in (dip, fall, jumps)]
    assert [rate.was_level for rate in found if rate is not None] == [True, False, False]
