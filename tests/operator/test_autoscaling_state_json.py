import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_operator.autoscaling.model import HistoryEntry, Learned, ScalingState
from tidemill_operator.autoscaling.state_json import from_json, to_json

TIMES = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)
STATES = st.builds(
    ScalingState,
    learned=st.builds(
        Learned,
        startup_seconds=st.none() | st.integers(0, 10**7).map(lambda x: x / 1000),
        concurrency=st.none() | st.integers(0, 10**7).map(lambda x: x / 1000),
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
    wanted=st.lists(st.tuples(TIMES, st.integers(0, 99)), max_size=5).map(tuple),
    changes=st.lists(st.tuples(TIMES, st.integers(-99, 99)), max_size=5).map(tuple),
    last_scale_time=st.none() | TIMES,
    last_request_time=st.none() | TIMES,
)


@given(state=STATES)
def test_a_state_that_went_through_status_is_the_same(state: ScalingState) -> None:
    assert from_json(json.loads(json.dumps(to_json(state)))) == state


def test_status_holds_no_floats_since_the_api_has_none() -> None:
    state = ScalingState(learned=Learned(startup_seconds=61.25), last_scale_time=1.5)
    assert "." not in json.dumps(to_json(state))


@pytest.mark.parametrize(
    "plain",
    [None, {}, [], {"learned": 3}, {"history": [None, {"at": "x"}], "wanted": [[1]], "lastScaleTime": True}],
)
def test_a_lost_or_foreign_status_reads_as_nothing_known(plain: Any) -> None:
    assert from_json(plain) == ScalingState()
