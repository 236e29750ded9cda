"""Bursts that come again and again: seen as such, prepared for, and forgotten when they stay away."""

from __future__ import annotations

from dataclasses import replace

from autoscaling_builders import Scenario, make_histogram, make_load, with_figures
from tidemill_operator.autoscaling import recurrence

EVERY, LENGTH = 600, 60


def bursts_at(*times: float, replicas: int = 6) -> recurrence.Bursts:
    return tuple(recurrence.Burst(at=at, replicas=replicas, is_past=True) for at in times)


def moments_due(*times: float) -> tuple[int, int]:
    """Return the first and last moment at which a burst is expected after those."""
    since = int(times[-1])
    found = [
        now for now in range(since, since + 1200, 5) if recurrence.due(bursts_at(*times), float(now), 90.0)
    ]
    return min(found), max(found)


def test_a_burst_that_came_three_times_is_due_when_its_rhythm_says_and_not_for_ever() -> None:
    assert moments_due(0.0, 600.0, 1200.0) == (1800 - 20 - 90, 1800 + 20)


def test_a_rhythm_that_is_less_even_or_new_is_given_more_time() -> None:
    assert moments_due(0.0, 600.0, 1230.0) == (1830 - 30 - 90, 1860 + 30)
    assert moments_due(0.0, 600.0) == (1200 - 45 - 90, 1200 + 45)


def test_one_burst_is_no_rhythm_and_a_third_at_another_time_ends_one() -> None:
    assert recurrence.due(bursts_at(0.0), 600.0, 90.0) is None
    assert recurrence.due(bursts_at(0.0, 600.0, 1500.0), 2100.0, 90.0) is None


def test_a_burst_is_noted_once_with_the_most_that_it_needed() -> None:
    bursts: recurrence.Bursts = ()
    for now, wanted, is_over in (
        (0, 4, True),
        (30, 7, True),
        (60, 5, False),
        (400, 3, False),
        (700, 6, True),
    ):
        bursts = recurrence.noted(bursts, float(now), wanted, is_over=is_over)
    assert [(b.at, b.replicas) for b in bursts] == [(0.0, 7), (700.0, 6)]


def test_a_burst_is_past_when_two_thirds_of_what_it_needed_are_enough_and_the_next_queue_is_another() -> None:
    bursts: recurrence.Bursts = ()
    seen = []
    for now, wanted, is_over in (
        (0, 5, True),
        (60, 9, False),
        (300, 7, True),
        (600, 6, False),
        (900, 12, True),
    ):
        bursts = recurrence.noted(bursts, float(now), wanted, is_over=is_over)
        seen.append((len(bursts), bursts[-1].replicas, bursts[-1].is_past))
    assert seen == [(1, 5, False), (1, 9, False), (1, 9, False), (1, 9, True), (2, 12, False)]


def test_while_a_burst_lasts_no_next_one_is_expected() -> None:
    past = bursts_at(0.0, 600.0)
    lasting = (*past[:-1], replace(past[-1], is_past=False))
    assert recurrence.due(past, 1200.0, 90.0) is not None
    assert recurrence.due(lasting, 1200.0, 90.0) is None


def reasons_after_three_bursts(*, num_late: float) -> list[tuple[int, int, str]]:
    """Run three bursts and then nothing; give (seconds since the third, replicas, reason) after it."""
    scenario, seen, late = Scenario(), [], 0.0
    for second in range(0, 2 * EVERY + 2 * EVERY, 5):
        is_burst = second % EVERY < LENGTH and second <= 2 * EVERY + LENGTH
        late += num_late if is_burst else 0.0
        total = late + 10.0 * (second + 5)
        load = with_figures(
            make_load(3),
            num_waiting=60 if is_burst else 0,
            num_running=48 if is_burst else 5,
            time_to_first_token=make_histogram(*[total - late] * 5, total),
        )
        decision = scenario.step(load, rate=9.0 if is_burst else 2.0)
        if second > 2 * EVERY + 120:
            seen.append((second - 2 * EVERY, decision.replicas, decision.reason))
    return seen


def test_replicas_are_there_when_the_fourth_burst_is_due_and_go_when_it_does_not_come() -> None:
    seen = reasons_after_three_bursts(num_late=200.0)
    ready = [at for at, _, reason in seen if reason == "RecurringBurst"]
    assert ready
    assert EVERY - 200 < min(ready) < EVERY - 100
    assert max(ready) < EVERY + 120
    most = max(replicas for _, replicas, reason in seen if reason == "RecurringBurst")
    assert most > 3
    assert seen[-1][1] <= 3


def test_a_rhythm_that_makes_nobody_late_is_not_prepared_for() -> None:
    assert "RecurringBurst" not in {reason for _, _, reason in reasons_after_three_bursts(num_late=0.0)}
