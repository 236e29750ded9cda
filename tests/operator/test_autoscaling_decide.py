"""Decisions of the autoscaler, each named for what broke others'."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling_builders import (
    START,
    Scenario,
    finding,
    gateways,
    make_demand,
    make_figures,
    make_histogram,
    make_load,
    make_policy,
    make_replica,
    with_figures,
)
from examples import examples
from tidemill_operator.autoscaling.model import (
    Behavior,
    FleetLoad,
    PacePolicy,
    ScalingRules,
    ScalingState,
    Schedule,
)
from tidemill_operator.autoscaling.state_json import from_json, to_json


def test_kv_stock_is_not_a_rate_so_a_growing_queue_scales_up_at_16_percent_kv_use() -> None:
    load = with_figures(make_load(3), held_blocks=640, num_waiting=40, num_running=48)
    decision = Scenario().run(load, 60, rate=6.0)
    assert decision.replicas > 3
    assert decision.reason in {"Queue", "ArrivalRate"}


def test_kv_stock_is_not_a_rate_so_nothing_shrinks_while_requests_wait() -> None:
    load = with_figures(make_load(3), held_blocks=640, num_waiting=1)
    scenario = Scenario()
    scenario.run(load, 900, rate=0.1)
    assert {decision.replicas for decision in scenario.decisions} == {3}
    assert scenario.last.clamps[0].name == "RequestsWait"


def test_prefill_heavy_load_scales_up_although_kv_use_is_stuck_at_32_percent() -> None:
    load = with_figures(
        make_load(2), held_blocks=1280, num_running=6, num_waiting=12, waiting_prompt_tokens=90_000
    )
    decision = Scenario().run(load, 60, rate=2.0, prompt=6000, output=20)
    assert decision.replicas > 2


def test_waits_for_all_ready_is_wrong_so_the_ready_ones_load_scales_and_what_is_coming_counts() -> None:
    stuck = make_replica(2, is_ready=False, ready_since=None, figures=None)
    busy = make_figures(num_waiting=60, num_running=48, held_blocks=3600)
    load = make_load(3, replicas=(make_replica(0, figures=busy), make_replica(1, figures=busy), stuck))
    decision = Scenario().run(load, 60, rate=6.0)
    assert decision.replicas > 3
    coming = tuple(make_replica(n, is_ready=False, ready_since=None, figures=None) for n in range(2, 12))
    enough = make_load(12, replicas=(*load.replicas[:2], *coming))
    assert Scenario().run(enough, 60, rate=6.0).replicas == 12


def test_pending_pods_count_so_a_burst_is_answered_once_and_not_by_a_cascade() -> None:
    scenario = Scenario()
    load = with_figures(make_load(2), num_running=48, held_blocks=3600, num_waiting=20)
    first = scenario.run(load, 30, rate=8.0).replicas
    coming = tuple(
        make_replica(n, is_ready=False, ready_since=None, figures=None, created=START)
        for n in range(2, first)
    )
    waiting = replace(load, current_replicas=first, replicas=(*load.replicas, *coming))
    later = scenario.run(waiting, 90, rate=8.0).replicas
    assert 4 <= first <= later <= first + 4


def test_oscillation_constant_load_at_a_boundary_changes_at_most_once_in_an_hour() -> None:
    scenario = Scenario()
    load, changes = make_load(3), 0
    for _ in range(720):
        decision = scenario.step(load, rate=4.42)
        if decision.replicas != len(load.replicas):
            changes += 1
            load = make_load(decision.replicas)
    assert changes <= 1


def test_queue_wait_not_seen_elsewhere_scales_by_the_whole_deficit_in_one_decision() -> None:
    scenario = Scenario()
    full = with_figures(make_load(2), num_running=48, held_blocks=3600)
    scenario.run(full, 60, rate=3.0)
    queued = with_figures(full, num_waiting=240, waiting_prompt_tokens=200_000)
    decision = scenario.step(queued, rate=3.0)
    assert decision.replicas >= 4
    assert decision.unclamped_replicas == decision.replicas


def test_restart_forgets_nothing_a_window_in_progress_goes_on() -> None:
    scenario = Scenario(
        make_policy(behavior=Behavior(scale_down=ScalingRules(stabilization_window_seconds=300)))
    )
    busy = with_figures(make_load(4), held_blocks=3000)
    scenario.run(busy, 300, rate=5.0)
    idle = make_load(4)
    scenario.run(idle, 120, rate=0.2)
    scenario.state = from_json(to_json(scenario.state))
    after = [scenario.step(idle, rate=0.2).replicas for _ in range(30)]
    assert set(after) == {4}
    assert scenario.run(idle, 300, rate=0.2).replicas < 4


def first_removal_seconds(load: FleetLoad, *, rate: float) -> float:
    """Give when a fleet of which nothing is remembered is first made smaller."""
    scenario = Scenario()
    while scenario.step(load, rate=rate).replicas >= len(load.replicas):
        assert scenario.now < START + 600
    return scenario.now - START


def test_after_a_restart_an_idle_fleet_shrinks_sooner_than_one_whose_load_is_still_to_be_measured() -> None:
    idle = first_removal_seconds(with_figures(make_load(4), num_running=0, held_blocks=0), rate=0.0)
    busy = first_removal_seconds(make_load(4), rate=0.2)
    assert 20 <= idle < 60 <= busy


def test_wrong_filter_runaway_only_the_replicas_given_are_counted_and_deleted_ones_leave_at_once() -> None:
    scenario = Scenario()
    scenario.run(with_figures(make_load(4), held_blocks=3900), 120, rate=5.0)
    gone = make_load(1, current_replicas=1)
    scenario.step(gone, rate=0.1)
    keys = [key for key in scenario.state.memory.counters if key.startswith("pod/")]
    assert [key.split("/")[1] for key in keys] == ["uid-0"]


def test_a_missed_ttft_without_a_backlog_is_said_and_is_no_reason_to_scale() -> None:
    scenario = Scenario()
    load = make_load(2)
    for step in range(60):
        counts = (0.0, 0.0, 0.0, 0.0, 10.0 * step, 10.0 * step)
        decision = scenario.step(with_figures(load, time_to_first_token=make_histogram(*counts)), rate=1.0)
    assert decision.replicas <= 2
    slo = next(f for f in decision.findings if f.condition == "SLOMet")
    assert (slo.status, slo.reason) == ("False", "PromptsTooLong")


def test_behavior_bounds_the_pace_and_says_so() -> None:
    pods = PacePolicy(kind="Pods", value=1, period_seconds=60)
    policy = make_policy(behavior=Behavior(scale_up=ScalingRules(policies=(pods,))))
    load = with_figures(make_load(2), num_running=48, num_waiting=200, held_blocks=3600)
    decision = Scenario(policy).step(load, rate=6.0)
    assert decision.replicas == 3
    assert decision.clamps[-1].name == "ScaleUpPace"
    assert decision.unclamped_replicas > 3
    assert finding(decision, "ScalingLimited") == "True"


def test_the_maximum_holds_and_the_decision_says_what_it_would_have_been() -> None:
    load = with_figures(make_load(2), num_running=48, num_waiting=200, held_blocks=3600)
    decision = Scenario(make_policy(max_replicas=3)).run(load, 10, rate=6.0)
    assert (decision.replicas, decision.clamps[-1].name) == (3, "Maximum")
    assert decision.unclamped_replicas > 3


def test_a_schedule_in_force_is_a_floor_with_its_name() -> None:
    schedule = Schedule(
        name="morning", timezone="UTC", cron="0 8 * * *", duration_seconds=86_400, min_replicas=6
    )
    decision = Scenario(make_policy(schedules=(schedule,))).run(make_load(2), 10, rate=1.0)
    assert decision.replicas == 6
    assert "morning" in decision.message


def test_every_change_is_kept_with_its_reason_at_most_five() -> None:
    scenario = Scenario()
    for waiting in range(7):
        count = 2 + scenario.decisions[-1].replicas if scenario.decisions else 2
        load = with_figures(make_load(min(count, 9)), num_waiting=100 + 50 * waiting, num_running=48)
        scenario.step(load, rate=4.0)
    assert 1 <= len(scenario.state.history) <= 5
    assert all(entry.reason and entry.message for entry in scenario.state.history)


def test_advisory_decides_and_remembers_no_change() -> None:
    load = with_figures(make_load(2), num_waiting=300, num_running=48)
    decision = Scenario(make_policy(mode="Advisory")).step(load, rate=4.0)
    assert decision.replicas > 2
    assert decision.state.history == ()


def test_learns_the_start_up_time_of_pods_that_become_ready() -> None:
    scenario = Scenario()
    scenario.step(make_load(1), rate=1.0)
    new = make_replica(1, created=START, ready_since=START + 75)
    scenario.step(make_load(2, replicas=(make_replica(0), new)), rate=1.0)
    assert scenario.state.learned.startup_seconds == pytest.approx(75)


LOADS = st.builds(
    make_load,
    num_replicas=st.integers(0, 8),
    gateways=st.sampled_from(
        [(), gateways(None), gateways(make_demand()), gateways(make_demand(held_requests=9))]
    ),
).flatmap(
    lambda load: st.tuples(
        *[
            st.sampled_from(
                [
                    r,
                    replace(r, figures=None),
                    replace(r, is_ready=False, ready_since=None, figures=None),
                    replace(r, is_draining=True),
                    replace(r, figures=make_figures(num_waiting=50, waiting_prompt_tokens=9_000)),
                    replace(r, figures=make_figures(held_blocks=float("nan"))),
                    replace(r, figures=make_figures(step_times=None, max_num_seqs=None)),
                ]
            )
            for r in load.replicas
        ]
    ).map(lambda replicas: replace(load, replicas=replicas))
)


@examples(60)
@given(loads=st.lists(LOADS, min_size=1, max_size=6), rate=st.floats(0, 20))
def test_whatever_the_load_the_answer_is_within_bounds_or_a_hold_and_has_a_reason(
    loads: list[FleetLoad], rate: float
) -> None:
    scenario = Scenario()
    for load in loads:
        decision = scenario.step(load, rate=rate)
        current = sum(not r.is_draining for r in load.replicas)
        assert 1 <= decision.replicas <= 16 or decision.replicas == max(
            current, load.current_replicas - sum(r.is_draining for r in load.replicas)
        )
        assert decision.reason
        assert decision.message
        assert from_json(to_json(decision.state)).history == from_json(to_json(decision.state)).history


def seconds_until_fewer(num_replicas: int, rate: float) -> float:
    """Return how long so many replicas are kept that were wanted a moment ago, while less is needed."""
    scenario = Scenario(state=ScalingState(wanted=((START, num_replicas),)))
    load = with_figures(make_load(num_replicas), num_waiting=0, num_running=8)
    while scenario.step(load, rate=rate).replicas >= num_replicas:
        assert scenario.now < START + 1500
    return scenario.now - START


def test_at_a_level_load_one_replica_too_many_goes_ten_minutes_after_it_was_wanted_and_three_go_soon() -> (
    None
):
    calm = with_figures(make_load(1), num_waiting=0, num_running=8)
    needed = Scenario().run(calm, 300.0, rate=3.4).replicas
    assert 590 <= seconds_until_fewer(needed + 1, 3.4) <= 620
    assert seconds_until_fewer(needed + 3, 3.4) < 120


def test_what_is_running_no_more_holds_no_replica() -> None:
    scenario = Scenario()
    scenario.run(with_figures(make_load(6), num_waiting=0, held_blocks=3000), 120.0, rate=1.0)
    assert scenario.last.reason == "KVCache"
    calm = with_figures(make_load(6), num_waiting=0, held_blocks=100, num_running=1)
    scenario.run(calm, 40.0, rate=1.0)
    assert scenario.last.replicas < 3


def test_while_too_few_requests_have_ended_to_say_what_a_replica_carries_nothing_is_removed() -> None:
    load = with_figures(make_load(6), num_waiting=0, num_running=4)
    scenario = Scenario()
    scenario.run(load, 110.0, rate=0.5)
    assert scenario.last.replicas == 6
    assert "RequestsWait" in {clamp.name for clamp in scenario.last.clamps}
    scenario.run(load, 60.0, rate=0.5)
    assert scenario.last.replicas < 6


@pytest.mark.parametrize(("first_rate", "window"), [(3.0, 30.0), (0.5, 12.0)])
def test_what_was_wanted_of_late_is_kept_longer_out_of_a_level_than_after_a_jump(
    first_rate: float, window: float
) -> None:
    wanted_until = START + 70
    scenario = Scenario(state=ScalingState(wanted=((wanted_until, 8),)))
    load = with_figures(make_load(8), num_waiting=0, num_running=2)
    scenario.run(load, 30.0, rate=first_rate)
    while scenario.step(load, rate=3.0).replicas >= 8:
        assert scenario.now < START + 300
    assert window < scenario.now - wanted_until <= window + 5


def first_rise_seconds(*, restarts_after: float | None, keeps_status: bool = True) -> float:
    """Return how long after a burst began more replicas are wanted; scaleUp looks back a minute."""
    policy = make_policy(behavior=Behavior(scale_up=ScalingRules(stabilization_window_seconds=60)))
    scenario = Scenario(policy)
    scenario.run(make_load(2), 300, rate=1.0)
    begun = scenario.now
    burst = with_figures(make_load(2), num_running=48, num_waiting=200, held_blocks=3600)
    while scenario.step(burst, rate=1.0).replicas <= 2:
        assert scenario.now - begun < 300
        if restarts_after is not None and scenario.now - begun >= restarts_after:
            restarts_after = None
            plain = to_json(scenario.state) if keeps_status else None
            scenario.state = from_json(plain)
    return scenario.now - begun


def test_a_restart_neither_shortens_nor_lengthens_the_window_of_scaling_up() -> None:
    undisturbed = first_rise_seconds(restarts_after=None)
    assert 60 <= undisturbed <= 70
    assert first_rise_seconds(restarts_after=30) == undisturbed


def test_with_a_lost_status_the_window_of_scaling_up_begins_anew_as_for_a_new_service() -> None:
    assert 90 <= first_rise_seconds(restarts_after=30, keeps_status=False) <= 100
    policy = make_policy(behavior=Behavior(scale_up=ScalingRules(stabilization_window_seconds=60)))
    burst = with_figures(make_load(2), num_running=48, num_waiting=200, held_blocks=3600)
    new = Scenario(policy)
    assert new.run(burst, 60, rate=6.0).replicas == 2
    assert new.last.clamps[0].name == "StabilizationWindow"
    assert new.run(burst, 15, rate=6.0).replicas > 2


def test_a_window_of_scaling_up_shorter_than_the_interval_delays_no_more_than_the_first_decision() -> None:
    policy = make_policy(behavior=Behavior(scale_up=ScalingRules(stabilization_window_seconds=2)))
    burst = with_figures(make_load(2), num_running=48, num_waiting=200, held_blocks=3600)
    scenario = Scenario(policy)
    assert scenario.step(burst, rate=6.0).replicas == 2
    assert scenario.step(burst, rate=6.0).replicas > 2


def test_without_a_window_of_scaling_up_nothing_is_kept_for_one() -> None:
    scenario = Scenario()
    scenario.run(make_load(2), 60, rate=1.0)
    assert "scaleUpRecommendations" not in to_json(scenario.state)
