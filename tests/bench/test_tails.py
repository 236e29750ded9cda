from __future__ import annotations

import pytest

from tidemill_bench.engine_seam import EngineSetup
from tidemill_bench.tails import as_table, tails
from tidemill_engine.scheduler import chunking

NARROW = EngineSetup(max_num_batched_tokens=512)


def test_requests_that_share_a_prefix_join_in_one_step_and_then_nobody_waits_for_a_prompt() -> None:
    wide, narrow = tails("prefix"), tails("prefix", NARROW)
    assert wide.itl_p99 < 2 * wide.itl_p50
    assert wide.itl_p99 < 0.5 * narrow.itl_p99
    assert wide.ttft_p99 < narrow.ttft_p99


def test_a_burst_s_last_prompts_wait_less_where_steps_grow_with_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    growing = tails("medium")
    monkeypatch.setattr(chunking, "mixed_ratio", lambda _num_waiting: 5.0)
    fixed = tails("medium")
    assert growing.ttft_p99 < 0.95 * fixed.ttft_p99
    assert growing.ttft_mean < 0.95 * fixed.ttft_mean
    assert growing.tokens_per_second > fixed.tokens_per_second
    assert growing.itl_p99 < 0.7, "two chunks beside 64 decodes"


def test_the_table_has_a_line_for_each_workload() -> None:
    row = tails("extreme")
    table = as_table([row])
    assert len(table.splitlines()) == 2
    assert f"{row.ttft_p99:.2f}" in table
