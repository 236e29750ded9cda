import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_operator.autoscaling.model import HistoryEntry, Learned, ScalingState
from tidemill_operator.autoscaling.state_json import MAX_MOMENTS, from_json, peaks, to_json, troughs

TIMES = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)
WHOLE = st.none() | st.integers(0, 10**7).map(float)
STATES = st.builds(
    ScalingState,
    learned=st.builds(
        Learned,
        startup_seconds=st.none() | st.integers(0, 10**7).map(lambda x: x / 1000),
        prefill_tokens_per_second=WHOLE,
        concurrency=WHOLE,
        cached_share=st.none() | st.integers(0, 100).map(lambda x: x / 100),
        out_of_reach_share=st.none() | st.integers(0, 100).map(lambda x: x / 100),
    ),
    history=st.lists(
        st.builds(
            HistoryEntry,
            at=TIMES,
            from_replicas=st.integers(0, 99),
            to_replicas=st.integers(0, 99),
            reason=st.text(max_size=9),
            message=st.text(max_size=99),
        ),
        max_size=5,
    ).map(tuple),
    wanted=st.lists(st.tuples(TIMES, st.integers(0, 99)), max_size=5).map(peaks),
    wanted_up=st.lists(st.tuples(TIMES, st.integers(0, 99)), max_size=5).map(troughs),
    changes=st.lists(st.tuples(TIMES, st.integers(-99, 99)), max_size=5).map(tuple),
    last_scale_time=st.none() | TIMES,
    last_request_time=st.none() | TIMES,
)


@given(state=STATES)
def test_a_state_that_went_through_status_is_the_same(state: ScalingState) -> None:
    assert from_json(json.loads(json.dumps(to_json(state)))) == state


def test_status_holds_no_floats_since_the_api_has_none() -> None:
    state = ScalingState(learned=Learned(startup_seconds=61.25), last_scale_time=1.0)
    assert "." not in json.dumps(to_json(state))


@pytest.mark.parametrize(
    "plain",
    [
        None,
        {},
        [],
        {"learned": 3},
        {"history": [None, {"time": "x"}], "recommendations": [[1]], "lastScaleTime": True},
    ],
)
def test_a_lost_or_foreign_status_reads_as_nothing_known(plain: Any) -> None:
    assert from_json(plain) == ScalingState()


def test_times_that_people_read_are_written_as_the_api_writes_them() -> None:
    plain = to_json(ScalingState(last_scale_time=1_796_000_000.0, last_request_time=1_796_000_000.25))
    assert (plain["lastScaleTime"], plain["lastRequestTime"]) == (
        "2026-11-30T00:53:20Z",
        "2026-11-30T00:53:20.250Z",
    )


@given(numbers=st.lists(st.integers(0, 9), max_size=150), since=st.integers(0, 150))
def test_no_window_looks_higher_or_lower_after_a_restart(numbers: list[int], since: int) -> None:
    moments = tuple((float(at), number) for at, number in enumerate(numbers))
    inside = {number for at, number in moments if at >= since}
    kept = {number for at, number in peaks(moments) if at >= since}
    assert max(kept, default=None) == max(inside, default=None)
    kept = {number for at, number in troughs(moments) if at >= since}
    assert min(kept, default=None) == min(inside, default=None)


@given(numbers=st.lists(st.integers(0, 400), min_size=1, max_size=150), since=st.integers(0, 149))
def test_what_does_not_fit_into_status_counts_for_more_and_never_for_less(
    numbers: list[int], since: int
) -> None:
    moments = tuple((float(at), number) for at, number in enumerate(sorted(numbers, reverse=True)))
    kept = peaks(moments)
    assert len(kept) <= MAX_MOMENTS
    assert kept[-1] == moments[-1]
    assert max((n for at, n in kept if at >= since), default=0) >= max(
        (n for at, n in moments if at >= since), default=0
    )
    rising = tuple((float(at), number) for at, number in enumerate(sorted(numbers)))
    kept = troughs(rising)
    assert len(kept) <= MAX_MOMENTS
    assert min((n for at, n in kept if at >= since), default=400) <= min(
        (n for at, n in rising if at >= since), default=400
    )


def test_a_restless_hour_of_recommendations_stays_small_and_its_highest_is_known() -> None:
    wanted = tuple((1_796_000_000.0 + 5 * n, 9 if n == 600 else n % 7) for n in range(720))
    plain = to_json(ScalingState(wanted=wanted))
    assert [number for _, number in plain["recommendations"]] == [9, 6, 5]
    assert plain["recommendations"][-1][0] == round(wanted[-1][0] * 1000)
