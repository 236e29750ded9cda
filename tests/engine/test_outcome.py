from __future__ import annotations

import numpy as np
import pytest

from engine_builders import make_harness, make_request
from tidemill_engine.messages import RequestOutput, StepTokens
from tidemill_engine.request import Request, RequestLimits
from tidemill_engine.scheduler.base import StepOutputs
from tidemill_engine.scheduler.outcome import Outcomes
from tidemill_engine.scheduler.rows import RowTable
from tidemill_engine.step import RowFailure, StepResult, int_array

LIMITS = RequestLimits(
    vocab_size=1000, max_model_len=100, max_cached_tokens=100, eos_token_ids=frozenset({1})
)
EOS = 1


def make_rows(**by_name: dict[str, object]) -> RowTable:
    """Return a table in which each of these requests, a prompt of two tokens, has a row, in order."""
    rows = RowTable(8, 100)
    for order, (name, fields) in enumerate(by_name.items()):
        message = make_request(name, prompt=[7, 8], **({"max_tokens": 50, "ignore_eos": False} | fields))  # type: ignore[arg-type]
        rows.take(Request(message, order=order, seed=0, limits=LIMITS), 0)
    return rows


def row_of(rows: RowTable, name: str) -> int:
    return next(i for i, request in enumerate(rows.requests) if request and request.request_id == name)


def give(outcomes: Outcomes, rows: RowTable, tokens: dict[str, list[int]], now: float = 1.0) -> StepOutputs:
    width = max(len(given) for given in tokens.values())
    result = StepResult(
        step_id=0,
        rows=int_array([row_of(rows, name) for name in tokens]),
        token_ids=int_array([given + [0] * (width - len(given)) for given in tokens.values()]),
        num_accepted=int_array([len(given) for given in tokens.values()]),
    )
    outputs, _ = outcomes.tokens(result, rows, now)
    return outputs


def special(outputs: StepOutputs, name: str) -> RequestOutput:
    (found,) = [output for output in outputs.special if output.request_id == name]
    return found


def columns(rows: RowTable, outputs: StepOutputs) -> dict[str, list[int]]:
    names = {request.handle: request.request_id for request in rows.requests if request}
    told: dict[str, list[int]] = {}
    for handle, token in zip(outputs.handles.tolist(), outputs.token_ids.tolist(), strict=True):
        told.setdefault(names[handle], []).append(token)
    return told


def test_first_tokens_are_told_apart_and_later_ones_in_columns() -> None:
    rows, outcomes = make_rows(a={}, b={}), Outcomes()
    first = give(outcomes, rows, {"a": [10], "b": [11]})
    assert (len(first.handles), len(first.special)) == (0, 2)
    second = give(outcomes, rows, {"a": [12], "b": [13]})
    assert second.special == []
    assert columns(rows, second) == {"a": [12], "b": [13]}
    (message,) = second.messages()
    assert isinstance(message, StepTokens)
    assert dict(message.pairs()) == dict(zip(second.handles.tolist(), [12, 13], strict=True))


def test_a_request_is_never_both_in_a_column_and_apart() -> None:
    rows, outcomes = make_rows(a={}, b={}), Outcomes()
    give(outcomes, rows, {"a": [10], "b": [11]})
    outputs = give(outcomes, rows, {"a": [12, 13], "b": [14, EOS]})
    assert columns(rows, outputs) == {"a": [12, 13]}
    assert special(outputs, "b").token_ids == [14, EOS]


def test_tokens_after_the_one_that_ends_are_dropped() -> None:
    rows, outcomes = make_rows(a={}, b={"max_tokens": 2}), Outcomes()
    outputs = give(outcomes, rows, {"a": [10, EOS, 12], "b": [10, 11, 12]})
    assert special(outputs, "a").token_ids == [10, EOS]
    assert special(outputs, "a").stop_token_id == EOS
    assert special(outputs, "b").token_ids == [10, 11]
    assert special(outputs, "b").finish_reason == "length"
    assert outcomes.generation_tokens == 4


def test_a_stop_that_is_also_the_last_allowed_token_is_a_stop() -> None:
    rows = make_rows(a={"max_tokens": 1})
    assert special(give(Outcomes(), rows, {"a": [EOS]}), "a").finish_reason == "stop"


@pytest.mark.parametrize("num_stops", [1, 3, 30])
def test_every_stop_token_ends_its_own_request_and_no_other(num_stops: int) -> None:
    stops = tuple(range(100, 100 + num_stops))
    for stop in stops:
        rows, outcomes = make_rows(a={"stop_token_ids": stops}, b={}), Outcomes()
        outputs = give(outcomes, rows, {"a": [stop], "b": [stop]})
        assert special(outputs, "a").stop_token_id == stop
        assert special(outputs, "b").finish_reason is None


def test_a_row_forgets_the_stops_of_the_request_before() -> None:
    rows = make_rows(a={"stop_token_ids": (100, 101)})
    row = row_of(rows, "a")
    rows.stop(row)
    rows.free(row)
    message = make_request("b", prompt=[7, 8], max_tokens=50)
    assert rows.take(Request(message, order=1, seed=0, limits=LIMITS), 0) == row
    assert special(give(Outcomes(), rows, {"b": [100]}), "b").finish_reason is None


def test_no_stop_counts_before_min_tokens() -> None:
    rows, outcomes = make_rows(a={"min_tokens": 3}), Outcomes()
    assert special(give(outcomes, rows, {"a": [EOS]}), "a").finish_reason is None
    assert columns(rows, give(outcomes, rows, {"a": [EOS]})) == {"a": [EOS]}
    assert special(give(outcomes, rows, {"a": [EOS]}), "a").finish_reason == "stop"


def test_what_comes_for_a_request_that_has_ended_is_dropped() -> None:
    rows, outcomes = make_rows(a={}, b={}), Outcomes()
    rows.close(row_of(rows, "a"))
    outputs = give(outcomes, rows, {"a": [10], "b": [11]})
    assert [output.request_id for output in outputs.special] == ["b"]
    failed = StepResult(
        step_id=0,
        rows=int_array(),
        token_ids=np.zeros((0, 1), dtype=np.int32),
        num_accepted=int_array(),
        failures=(RowFailure(row=row_of(rows, "a"), message="broken"),),
    )
    assert outcomes.failures(failed, rows) == []


def test_intervals_are_per_token_and_begin_with_the_second() -> None:
    rows, outcomes = make_rows(a={}), Outcomes()
    give(outcomes, rows, {"a": [10]}, now=1.0)
    assert outcomes.take_inter_token_seconds() == []
    give(outcomes, rows, {"a": [11, 12]}, now=1.5)
    assert outcomes.take_inter_token_seconds() == [0.25]


def test_while_all_decode_no_object_is_made_for_any_request() -> None:
    harness = make_harness(max_num_seqs=8)
    for name in "abcdefgh":
        harness.add(make_request(name, prompt_len=2, max_tokens=20))
    for _ in range(3):
        harness.step()
    output = harness.scheduler.schedule(9.0)
    assert output is not None
    harness.runner.launch(output)
    outputs = harness.scheduler.update(harness.runner.sample(None), 9.0)
    assert (len(outputs.handles), outputs.special, len(outputs.messages())) == (8, [], 1)
