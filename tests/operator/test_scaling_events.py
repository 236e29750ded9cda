"""What is told about scaling, and what is not told twice."""

from __future__ import annotations

from typing import Any

from tidemill_operator.scaling_events import scaling_events


def status(desired: int, *, metrics: str = "True", **scaling: Any) -> dict[str, Any]:
    return {
        "desiredReplicas": desired,
        "scaling": {"reason": "Queue", "message": "9 requests wait", "desiredReplicas": desired, **scaling},
        "conditions": [
            {"type": "MetricsAvailable", "status": metrics, "reason": f"R{metrics}", "message": "2 of 3"}
        ],
    }


def test_a_change_is_told_with_its_reason_numbers_and_limits() -> None:
    limits = [{"name": "max", "from": 9, "to": 4, "message": "m"}]
    ((is_warning, reason, message),) = scaling_events(status(2), status(4, limits=limits), is_advisory=False)
    assert (is_warning, reason) == (False, "ScaledUp")
    assert message == "Scaled from 2 to 4 replicas: Queue: 9 requests wait (limits: max 9 → 4)"


def test_down_has_a_name_of_its_own() -> None:
    assert scaling_events(status(4), status(2), is_advisory=False)[0][1] == "ScaledDown"


def test_no_change_tells_nothing() -> None:
    assert scaling_events(status(2), status(2), is_advisory=False) == []


def test_advice_is_told_as_advice_and_its_status_alone_counts() -> None:
    before, after = status(2), {**status(5), "desiredReplicas": 2}
    ((_, reason, message),) = scaling_events(before, after, is_advisory=True)
    assert reason == "WouldScale"
    assert message.startswith("Would scale from 2 to 5")


def test_the_first_decision_of_a_service_without_a_status_is_no_change() -> None:
    assert scaling_events({}, status(2), is_advisory=False) == []


def test_missing_figures_are_a_warning_once_and_their_return_is_told() -> None:
    good, bad = status(2), status(2, metrics="False")
    assert [told[:2] for told in scaling_events(good, bad, is_advisory=False)] == [(True, "RFalse")]
    assert scaling_events(bad, bad, is_advisory=False) == []
    assert [told[:2] for told in scaling_events(bad, good, is_advisory=False)] == [(False, "RTrue")]


def test_a_service_that_is_scaled_by_hand_has_no_scaling_events() -> None:
    assert scaling_events({"desiredReplicas": 1}, {"desiredReplicas": 3}, is_advisory=False) == []
