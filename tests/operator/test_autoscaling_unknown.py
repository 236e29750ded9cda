"""What the autoscaler is not told: never zero, and a reason to hold."""

import pytest

from autoscaling_builders import (
    START,
    TO_ZERO,
    Scenario,
    finding,
    gateways,
    make_demand,
    make_figures,
    make_load,
    make_policy,
    make_replica,
    with_figures,
)
from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.autoscaling.model import ScalingState, SloTargets


def test_metrics_labels_missing_is_not_zero_but_a_hold() -> None:
    load = make_load(3, replicas=tuple(make_replica(n, figures=None) for n in range(3)))
    decision = Scenario().run(load, 1200, rate=0.0)
    assert decision.replicas == 3
    assert decision.reason == "MetricsMissing"
    assert finding(decision, "MetricsAvailable") == "False"
    assert finding(decision, "ScalingActive") == "False"


@pytest.mark.parametrize("count", [0, 1, 5])
def test_metrics_outage_reads_as_a_hold_at_the_current_count_and_recovers_by_itself(count: int) -> None:
    policy = make_policy(min_replicas=0, scale_to_zero=TO_ZERO)
    dark = make_load(
        count,
        replicas=tuple(make_replica(n, figures=None, missing_reason="timed out") for n in range(count)),
        gateways=gateways(None),
    )
    scenario = Scenario(policy)
    scenario.run(dark, 1800)
    assert {decision.replicas for decision in scenario.decisions} == {count}
    assert scenario.last.reason in {"MetricsMissing", "AtZero"}
    back = scenario.run(make_load(count), 30, rate=1.0)
    assert count == 0 or finding(back, "MetricsAvailable") == "True"


def test_stale_figures_are_unknown_and_not_the_last_value() -> None:
    stale = with_figures(make_load(3), sampled_at=START - 60)
    decision = desired_replicas(stale, make_policy(), ScalingState(), START)
    assert decision.replicas == 3
    assert finding(decision, "MetricsAvailable") == "False"


def test_a_replica_without_figures_counts_as_at_target_on_the_way_down() -> None:
    replicas = (make_replica(0), make_replica(1), make_replica(2, figures=None))
    scenario = Scenario(make_policy(slo=SloTargets()))
    scenario.run(make_load(3, replicas=replicas), 900, rate=0.2)
    known = Scenario(make_policy(slo=SloTargets()))
    known.run(make_load(3), 900, rate=0.2)
    assert scenario.last.replicas > known.last.replicas == 1


def test_a_silent_gateway_is_not_an_idle_one() -> None:
    scenario = Scenario(make_policy(min_replicas=0, scale_to_zero=TO_ZERO))
    load = make_load(
        1,
        replicas=(make_replica(0, figures=make_figures(num_running=0)),),
        gateways=gateways(make_demand(), None),
    )
    scenario.run(load, 3600)
    assert scenario.last.replicas == 1


def test_status_lost_on_restore_means_hold_until_the_load_is_measured_again() -> None:
    scenario = Scenario()
    assert {scenario.step(make_load(5), rate=1.0).replicas for _ in range(10)} == {5}


def test_engines_that_tell_neither_slots_nor_step_times_get_one_more_for_a_queue_and_not_a_second() -> None:
    silent = make_figures(step_times=None, max_num_seqs=None)
    held = gateways(make_demand(held_requests=9))
    load = make_load(1, replicas=(make_replica(0, figures=silent),), gateways=held)
    assert Scenario().step(load).replicas == 2
    coming = make_replica(1, is_ready=False, ready_since=None, figures=None)
    both = make_load(2, replicas=(make_replica(0, figures=silent), coming), gateways=held)
    assert Scenario().step(both).replicas == 2
