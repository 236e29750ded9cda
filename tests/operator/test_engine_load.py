"""What is read from an engine's answer."""

from __future__ import annotations

from tidemill_operator.engine_load import EngineLoad, parse_load


def test_reads_what_an_engine_says() -> None:
    answer = {
        "in_flight_requests": 3,
        "in_flight_tokens": 700,
        "cached_blocks": 12,
        "answered_requests": 90,
        "failed_requests": 2,
        "phase": "refusing",
    }
    assert parse_load(answer) == EngineLoad(
        in_flight_requests=3,
        in_flight_tokens=700,
        num_cached_blocks=12,
        is_refusing=True,
        num_answered=90,
        num_failed=2,
    )


def test_a_draining_engine_that_still_accepts_does_not_refuse() -> None:
    assert not parse_load({"draining": True, "phase": "accepting"}).is_refusing


def test_what_an_older_engine_does_not_say_counts_as_nothing() -> None:
    assert parse_load({}) == EngineLoad()
    assert parse_load({"in_flight_requests": "many", "in_flight_tokens": -1}) == EngineLoad()
