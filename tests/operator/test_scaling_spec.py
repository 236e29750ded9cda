"""What spec.scaling means, and what is refused with the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill_operator.autoscaling.policy import (
    PacePolicy,
    ScaleToZero,
    ScalingPolicy,
    ScalingRules,
    SloTargets,
)
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.scaling_spec import parse_scaling

SCHEDULE: dict[str, Any] = {"name": "day", "cron": "0 8 * * 1-5", "duration": "10h", "minReplicas": 3}


def test_gives_defaults_to_what_is_absent() -> None:
    assert parse_scaling({"maxReplicas": 4}) == ScalingPolicy(min_replicas=1, max_replicas=4)


def test_no_scaling_is_no_policy() -> None:
    assert parse_scaling(None) is None


def test_reads_every_field() -> None:
    policy = parse_scaling(
        {
            "minReplicas": 0,
            "maxReplicas": 9,
            "targets": {"kvCacheUtilizationPercent": 70, "queueLengthPerReplica": 2},
            "slo": {"timeToFirstToken": "1500ms", "interTokenLatency": "80ms", "percentile": 90},
            "behavior": {
                "scaleUp": {
                    "selectPolicy": "Min",
                    "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
                },
                "scaleDown": {"stabilizationWindowSeconds": 120},
            },
            "scaleToZero": {"idleAfter": "20m", "activationTimeout": "2m", "maxBufferedRequests": 7},
            "metrics": {"interval": "2s", "staleAfter": "9s"},
            "schedules": [{**SCHEDULE, "timezone": "Europe/Berlin"}],
        }
    )
    assert policy is not None
    assert (policy.kv_cache_target, policy.queue_length_per_replica) == (0.7, 2.0)
    assert policy.slo == SloTargets(time_to_first_token_seconds=1.5, inter_token_seconds=0.08, percentile=90)
    pace = PacePolicy(kind="Pods", value=2, period_seconds=60.0)
    assert policy.behavior.scale_up == ScalingRules(select_policy="Min", policies=(pace,))
    assert policy.behavior.scale_down == ScalingRules(stabilization_window_seconds=120)
    assert policy.scale_to_zero == ScaleToZero(
        idle_after_seconds=1200, activation_timeout_seconds=120, max_buffered_requests=7
    )
    assert (policy.interval_seconds, policy.stale_after_seconds) == (2.0, 9.0)
    assert policy.schedules[0].timezone == "Europe/Berlin"
    assert policy.schedules[0].duration_seconds == 36000


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"maxReplicas": None}, "spec.scaling.maxReplicas"),
        ({"minReplicas": 9}, "spec.scaling.minReplicas"),
        ({"minReplicas": 0}, "spec.scaling.minReplicas"),
        ({"scaleToZero": {}}, "spec.scaling.minReplicas"),
        ({"minReplicas": 0, "scaleToZero": {}, "mode": "Advisory"}, "spec.scaling.scaleToZero"),
        ({"mode": "Manual"}, "spec.scaling.mode"),
        ({"slo": {"timeToFirstToken": "0s"}}, "spec.scaling.slo.timeToFirstToken"),
        ({"slo": {"interTokenLatency": "fast"}}, "spec.scaling.slo.interTokenLatency"),
        ({"behavior": {"scaleUp": {"selectPolicy": "Most"}}}, "spec.scaling.behavior.scaleUp.selectPolicy"),
        ({"behavior": {"scaleDown": {"policies": [{}]}}}, "spec.scaling.behavior.scaleDown.policies"),
        ({"metrics": {"interval": "often"}}, "spec.scaling.metrics.interval"),
        ({"schedules": [{**SCHEDULE, "minReplicas": 5}]}, "spec.scaling.schedules"),
        ({"schedules": [{**SCHEDULE, "cron": "0 25 * * *"}]}, "spec.scaling.schedules[day].cron"),
        ({"schedules": [{**SCHEDULE, "timezone": "Mars/Olympus"}]}, "spec.scaling.schedules[day].timezone"),
        (
            {"schedules": [{**SCHEDULE, "timezone": "../../etc/passwd"}]},
            "spec.scaling.schedules[day].timezone",
        ),
    ],
)
def test_refuses_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_scaling({"maxReplicas": 4, **changes})
    assert refused.value.field == field
