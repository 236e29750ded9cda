"""The text format as exporters really write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from tidemill_operator.fleet.exposition import Exposition, Sample, parse

WAITING = "vllm:num_requests_waiting"


def read(text: str, *names: str) -> Exposition:
    return parse(text, frozenset(names or (WAITING,)))


def test_reads_wanted_names_and_skips_the_rest() -> None:
    text = f'# HELP x y\n# TYPE x gauge\n{WAITING}{{model_name="m"}} 3\nother 4\n\n'
    assert read(text).samples == (Sample(name=WAITING, labels={"model_name": "m"}, value=3.0),)


def test_a_name_that_begins_like_a_wanted_one_is_another_name() -> None:
    assert read(f"{WAITING}_more 9").samples == ()


def test_adds_up_the_series_of_several_models_in_one_engine() -> None:
    assert read(f'{WAITING}{{model_name="a"}} 3\n{WAITING}{{model_name="b"}} 4').total(WAITING) == 7


def test_nan_is_no_number_and_not_zero() -> None:
    found = read(f"{WAITING} NaN")
    assert found.samples[0].value is None
    assert found.total(WAITING) is None


def test_a_series_that_is_missing_is_not_zero() -> None:
    assert read("other 1").total(WAITING) is None


def test_the_second_name_counts_where_the_first_is_missing() -> None:
    assert read("old_name 0.5", "new_name", "old_name").largest("new_name", "old_name") == 0.5


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (f"{WAITING} +Inf", float("inf")),
        (f"{WAITING} 1e3 1700000000000", 1000.0),
        (f"{WAITING}{{}} 2", 2.0),
        (f'{WAITING}{{a="b",}} 2', 2.0),
        (f"  {WAITING}\t5  ", 5.0),
    ],
)
def test_reads_every_form_of_a_value(line: str, value: float) -> None:
    assert read(line).total(WAITING) == value


@pytest.mark.parametrize(
    "line",
    [
        WAITING,
        f"{WAITING} many",
        f'{WAITING}{{a="b" 3',
        f"{WAITING}{{a=b}} 3",
        f"{WAITING} 1 2 3",
        "{} 3",
        "<html>",
    ],
)
def test_a_malformed_line_is_counted_and_spoils_no_other(line: str) -> None:
    found = read(f"{line}\n{WAITING} 7")
    assert (found.total(WAITING), found.num_malformed) == (7, 1)


def test_labels_may_hold_quotes_commas_braces_and_line_ends() -> None:
    (sample,) = read(f'{WAITING}{{a="x\\"y,}}{{",b="c\\\\d\\ne"}} 1').samples
    assert sample.labels == {"a": 'x"y,}{', "b": "c\\d\ne"}


@given(st.text(max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    read(text)


@given(st.lists(st.floats(0, 10), max_size=30), st.text(max_size=10))
def test_reads_back_what_the_official_client_writes(values: list[float], label: str) -> None:
    registry = CollectorRegistry()
    histogram = Histogram("wait_seconds", "w", ["m"], buckets=(1, 2, 5), registry=registry)
    Gauge("depth", "d", ["m"], registry=registry).labels(label).set(4)
    for value in values:
        histogram.labels(label).observe(value)
    found = read(generate_latest(registry).decode(), "wait_seconds_bucket", "depth")
    assert found.total("depth") == 4
    assert found.samples[-1].labels["m"] == label or not label
    if values:
        expected = [(b, float(sum(v <= b for v in values))) for b in (1, 2, 5, float("inf"))]
        assert found.buckets("wait_seconds") == tuple(expected)
