"""The reader's cost is measured on real sockets, and every engine is read."""

from __future__ import annotations

import pytest

from tidemill_bench.scrape import ScrapeOptions, answer_of, measure
from tidemill_operator.fleet.figures import engine_from_load


def test_the_synthetic_engines_say_all_that_ours_say() -> None:
    figures = engine_from_load(answer_of(3), 1.0)
    assert figures.time_to_first_token is not None
    assert figures.step_times is not None


@pytest.mark.slow
def test_every_engine_is_read_in_every_round() -> None:
    options = ScrapeOptions(endpoints=30, interval_seconds=0.3, rounds=2)
    cost = measure(options)
    assert (cost.num_answers, cost.num_missing) == (60, 0)
    assert 0 < cost.as_json(options)["cpu_share"] < 1  # type: ignore[operator]
