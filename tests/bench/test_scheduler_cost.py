import json

import pytest

from tidemill_bench import vllm_probe
from tidemill_bench.scheduler_cost import Cost, CostOptions, SizeCost, as_table, measure
from tidemill_bench.smollm2 import VOCAB_SIZE
from tidemill_bench.timeline import draw, record
from tidemill_bench.vllm_cost import measure_vllm, read_probe


def test_the_probe_that_runs_without_us_has_the_vocabulary_of_the_same_model() -> None:
    assert vllm_probe.CONFIG["vocab_size"] == VOCAB_SIZE


def make_cost(median: float) -> Cost:
    return Cost(
        median=median,
        p99=2 * median,
        most=3 * median,
        wall_median=median,
        wall_p99=2 * median,
        schedule_median=median / 2,
        update_median=median / 2,
        num_collections=0,
    )


@pytest.mark.parametrize("is_aligned", [False, True])
def test_every_step_that_is_timed_decodes_all_requests_and_boundaries_are_among_them(
    is_aligned: bool,
) -> None:
    cost = measure(16, CostOptions(num_steps=40, block_size=16), is_aligned=is_aligned)
    assert 0.0 < cost.median <= cost.p99 <= cost.most


def test_the_json_takes_the_median_of_mixed_and_the_p99_of_aligned_boundaries() -> None:
    size = SizeCost(num_running=256, mixed=make_cost(0.1), aligned=make_cost(0.2))
    assert (size.as_json()["median"], size.as_json()["p99"]) == (0.1, 0.4)
    table = as_table([size], {"256": {"median": 1.0, "p99": 2.0}})
    assert "10 times ours" in table


def test_without_vllm_the_report_says_so_and_gives_no_figures() -> None:
    options = CostOptions(sizes=(16,))
    assert "give --vllm-python" in measure_vllm(None, options).note
    missing = read_probe(0, json.dumps({"missing": "No module named 'vllm'"}), "")
    assert "not installed" in missing.note
    failed = read_probe(1, "", "boom")
    assert "boom" in failed.note
    assert not missing.schedule_update_ms
    assert not failed.schedule_update_ms
    told = {"version": "1", "schedule_update_ms": {"16": {"median": 1.0, "p99": 2.0}}}
    assert read_probe(0, "noise\n" + json.dumps(told), "").schedule_update_ms == told["schedule_update_ms"]


def test_the_timeline_shows_every_token_of_every_request_once() -> None:
    timeline = record()
    computed = [0] * timeline.num_requests
    for step in timeline.steps:
        assert sum(cell.num_tokens for cell in step.cells) <= timeline.budget
        for cell in step.cells:
            assert cell.start_pos == computed[cell.request]
            computed[cell.request] += cell.num_tokens
    assert all(done >= prompt for done, prompt in zip(computed, timeline.prompts, strict=True))
    assert any(len({cell.num_tokens > 1 for cell in step.cells}) == 2 for step in timeline.steps), (
        "a chunk and a decode share a step"
    )
    picture = draw(timeline)
    assert picture.startswith("<svg")
    assert picture.count(">request ") == timeline.num_requests
    assert picture == draw(record())
