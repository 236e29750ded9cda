"""What keeps a number steady, and how full a fleet may be at first: chance, the hour after a change."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from autoscaling_builders import STEP_TIMES, make_policy
from tidemill_operator.autoscaling import objectives
from tidemill_operator.autoscaling.capacity import Limits, Work, by_step_times
from tidemill_operator.autoscaling.decision import HistoryEntry, ScalingState
from tidemill_operator.autoscaling.memory import LatencyWindow, Memory
from tidemill_operator.autoscaling.policy import SloTargets
from tidemill_operator.autoscaling.queueing import busy_share
from tidemill_operator.autoscaling.rules import Wish, apply_rules

CHAT = Work(prompt=1100.0, uncached=1100.0, output=210.0)
LIMITS = Limits(max_num_seqs=48.0, capacity_tokens=64_000.0)


def test_a_machine_that_computes_long_prompts_alone_is_to_be_less_full_as_more_may_be_late_fuller() -> None:
    shares = [busy_share(seconds, 0.5, 5.0, 0.05) for seconds in (0.2, 0.5, 1.0, 2.0, 4.0)]
    assert shares == sorted(shares, reverse=True)
    assert 0.8 < shares[0] < 1.0
    assert busy_share(1.0, 0.5, 5.0, 0.01) < busy_share(1.0, 0.5, 5.0, 0.05) < busy_share(1.0, 0.0, 5.0, 0.05)
    assert busy_share(6.0, 0.0, 5.0, 0.05) == pytest.approx(0.0, abs=1e-4)


def test_at_the_share_that_chance_allows_about_as_many_are_late_as_may_be() -> None:
    busy, rng, wait, late = busy_share(1.0, 0.0, 5.0, 0.05), random.Random(7), 0.0, 0
    for _ in range(100_000):
        late += wait + 1.0 > 5.0
        wait = max(0.0, wait + 1.0 - rng.expovariate(busy))
    assert 0.03 < late / 100_000 < 0.06


def test_what_chance_leaves_of_a_replica_is_said_where_prompts_spread_is_known_and_promised() -> None:
    spread = replace(CHAT, spread=0.9)
    assert by_step_times(STEP_TIMES, CHAT, LIMITS, make_policy()).by_chance is None
    assert by_step_times(STEP_TIMES, spread, LIMITS, make_policy(slo=SloTargets())).by_chance is None
    longer = replace(spread, prompt=5000.0, uncached=5000.0)
    shares = [by_step_times(STEP_TIMES, work, LIMITS, make_policy()).by_chance for work in (spread, longer)]
    assert shares[0] is not None
    assert shares[1] is not None
    assert shares[0] > shares[1]


def window_of(*counts: float) -> LatencyWindow:
    return LatencyWindow(upper_bounds_seconds=(1.0, 2.0, math.inf), counts=counts)


def test_a_miss_that_is_over_says_nothing_of_how_full_the_fleet_is_now() -> None:
    policy, missed, kept = make_policy(), window_of(0.0, 0.0, 200.0), window_of(200.0, 0.0, 0.0)
    policy = replace(policy, slo=replace(policy.slo, time_to_first_token_seconds=1.5))
    pressures = [
        objectives.pressure(Memory(settled_first=missed, time_to_first_token=lately), policy)
        for lately in (None, missed, kept)
    ]
    assert [p is not None and p > 1.0 for p in pressures] == [True, True, False]


def level_wish(down: int, *, was_level: bool = True, is_steady: bool = False) -> Wish:
    return Wish(
        up=1,
        down=down,
        lasting=down,
        reason="ArrivalRate",
        message="",
        was_level=was_level,
        is_steady=is_steady,
    )


def after_an_hour_of(wish: Wish, current: int, last: HistoryEntry | None) -> int:
    """Give the number after an hour in which nothing else was wanted."""
    state = ScalingState(
        history=(last,) if last else (),
        wanted=tuple((60.0 * minute, wish.down) for minute in range(60)),
    )
    return apply_rules(wish, current, make_policy(), state, 3600.0)[0]


def changed(at: float, to: int) -> HistoryEntry:
    return HistoryEntry(at=at, from_replicas=1, to_replicas=to, reason="ArrivalRate", message="")


def test_a_level_load_keeps_a_few_replicas_too_many_until_an_hour_after_the_last_change() -> None:
    assert after_an_hour_of(level_wish(3), 4, changed(1200.0, 4)) == 4
    assert after_an_hour_of(level_wish(3), 6, changed(1200.0, 6)) == 4
    assert after_an_hour_of(level_wish(3, is_steady=True), 8, changed(1200.0, 8)) == 5
    assert after_an_hour_of(level_wish(3), 4, None) == 3
    assert after_an_hour_of(level_wish(3), 4, changed(-10.0, 4)) == 3
    assert after_an_hour_of(level_wish(3, was_level=False), 4, changed(1200.0, 4)) == 3


def test_a_change_that_is_not_carried_out_yet_holds_nothing() -> None:
    assert after_an_hour_of(level_wish(3), 4, changed(3595.0, 3)) == 3
