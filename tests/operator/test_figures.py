"""What answers of engines and gateways say, and what they fail to say."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_builders import DEMAND, LOAD, METRICS
from tidemill_operator.fleet.figures import (
    UNKNOWN_CAPACITY_BLOCKS,
    MissingFiguresError,
    demand_of_services,
    engine_from_load,
    engine_from_metrics,
)


def load_with(**changes: Any) -> bytes:
    merged = {key: value for key, value in {**LOAD, **changes}.items() if value is not ...}
    return json.dumps(merged).encode()


def test_reads_everything_that_our_engine_says() -> None:
    figures = engine_from_load(load_with(), 50.0)
    assert (figures.sampled_at, figures.process_started) == (50.0, 1000.5)
    assert (figures.num_running, figures.num_waiting, figures.kv_use) == (3, 2, 0.75)
    assert (figures.capacity_tokens, figures.max_num_seqs, figures.waiting_prompt_tokens) == (1600, 64, 40)
    assert (figures.prefill_tokens_total, figures.cached_tokens_total) == (700, 50)
    assert (figures.output_tokens_total, figures.requests_total) == (300, 7)
    assert figures.time_to_first_token is not None
    assert figures.time_to_first_token.upper_bounds_seconds == (0.1, 1.0, math.inf)
    assert figures.time_to_first_token.cumulative_counts == (2, 5, 6)
    assert figures.step_times is not None
    assert figures.step_times.fixed_seconds == 0.01


@pytest.mark.parametrize("field", ["running", "waiting", "free_blocks", "total_blocks", "block_size"])
@pytest.mark.parametrize("value", [..., None, "3", -1, True, math.nan, math.inf])
def test_an_answer_without_a_needed_figure_is_missing_and_says_which(field: str, value: object) -> None:
    with pytest.raises(MissingFiguresError, match=field):
        engine_from_load(load_with(**{field: value}), 0.0)


@pytest.mark.parametrize(
    "field",
    ["time_to_first_token", "step_seconds", "requests_total", "max_num_seqs", "prefix_cache_hits_total"],
)
@pytest.mark.parametrize("value", [..., None, "x", math.nan, [[1]], [["a", 1]], {"fixed": 1}])
def test_a_figure_that_can_be_done_without_is_none_where_it_is_missing(field: str, value: object) -> None:
    figures = engine_from_load(load_with(**{field: value}), 0.0)
    names = {"step_seconds": "step_times", "prefix_cache_hits_total": "cached_tokens_total"}
    assert getattr(figures, names.get(field, field)) is None


def test_an_engine_that_still_loads_has_no_figures() -> None:
    with pytest.raises(MissingFiguresError, match="loading"):
        engine_from_load(load_with(total_blocks=0, free_blocks=0), 0.0)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null", b"[" * 100_000])
def test_an_answer_that_is_no_object_is_missing(body: bytes) -> None:
    with pytest.raises(MissingFiguresError, match="JSON"):
        engine_from_load(body, 0.0)


@given(st.binary(max_size=300))
def test_no_answer_makes_it_fail_otherwise(body: bytes) -> None:
    with pytest.raises(MissingFiguresError):
        engine_from_load(body, 0.0)


def test_reads_another_engines_metrics_by_the_known_names() -> None:
    figures = engine_from_metrics(METRICS, 50.0)
    assert (figures.num_running, figures.num_waiting, figures.kv_use) == (3, 2, 0.25)
    assert (figures.capacity_tokens, figures.process_started) == (3200, 1000.5)
    assert (figures.prefill_tokens_total, figures.cached_tokens_total) == (800, 100)
    assert (figures.output_tokens_total, figures.requests_total) == (300, 7)
    assert figures.time_to_first_token is not None
    assert figures.time_to_first_token.cumulative_counts == (2, 6)
    assert figures.max_num_seqs is None


def test_reads_sglang_by_its_names() -> None:
    text = """
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2
sglang:token_usage{model_name="m",tp_rank="0"} 0.25
sglang:max_total_num_tokens{model_name="m"} 3200
sglang:prompt_tokens_total{model_name="m"} 900
sglang:cached_tokens_total{model_name="m",cache_source="device"} 100
sglang:generation_tokens_total{model_name="m"} 300
sglang:num_requests_total{model_name="m"} 7
sglang:time_to_first_token_seconds_bucket{le="0.1"} 2
sglang:time_to_first_token_seconds_bucket{le="+Inf"} 6
"""
    theirs, ours = engine_from_metrics(text, 50.0), engine_from_metrics(METRICS, 50.0)
    assert (theirs.kv_use, theirs.capacity_tokens) == (ours.kv_use, ours.capacity_tokens)
    for name in ("num_running", "num_waiting", "prefill_tokens_total", "cached_tokens_total"):
        assert getattr(theirs, name) == getattr(ours, name)
    assert (theirs.output_tokens_total, theirs.requests_total) == (300, 7)
    assert theirs.time_to_first_token == ours.time_to_first_token


@pytest.mark.parametrize(
    "name", ["vllm:num_requests_running", "vllm:num_requests_waiting", "cache_usage_perc"]
)
@pytest.mark.parametrize("value", ["gone", "NaN", "+Inf", "-1"])
def test_metrics_without_the_series_are_missing_and_not_zero(name: str, value: str) -> None:
    kept = [line for line in METRICS.splitlines() if name not in line]
    spoilt = [] if value == "gone" else [f"vllm:{name.removeprefix('vllm:')} {value}"]
    with pytest.raises(MissingFiguresError, match="vllm:"):
        engine_from_metrics("\n".join([*kept, *spoilt]), 0.0)


def test_an_engine_that_hides_its_capacity_still_tells_its_use() -> None:
    text = "\n".join(line for line in METRICS.splitlines() if "cache_config" not in line)
    figures = engine_from_metrics(text, 0.0)
    assert (figures.kv_use, figures.total_blocks) == (0.25, UNKNOWN_CAPACITY_BLOCKS)
    assert figures.capacity_tokens == 0


def test_reads_what_a_gateway_says_of_every_service() -> None:
    body = json.dumps(
        {
            "gateway": "g",
            "started": 5.0,
            "services": {"a/b": DEMAND, "a/c": {**DEMAND, "last_request_time": None}},
        }
    )
    started, services = demand_of_services(body.encode(), 50.0)
    assert started == 5.0
    assert (services["a/b"].held_requests, services["a/b"].last_request_time) == (4, 77.5)
    assert services["a/c"].last_request_time is None


@pytest.mark.parametrize("services", [None, [], {"a/b": 3}, {"a/b": {**DEMAND, "held_requests": "4"}}])
def test_a_gateways_answer_of_another_shape_is_missing(services: object) -> None:
    with pytest.raises(MissingFiguresError):
        demand_of_services(json.dumps({"services": services}).encode(), 0.0)
