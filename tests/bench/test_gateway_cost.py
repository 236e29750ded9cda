"""What the gateway's choice of replicas saves over real engines, and what its cost is compared with."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill_bench.gateway.command import is_within_promises
from tidemill_bench.gateway.cost import PATHS, compare
from tidemill_bench.gateway.fairness import LOUD, QUIET, FairnessPlan, Waits, Way, measure_way
from tidemill_bench.gateway.prefix import PrefixPlan, Reuse, document, measure_prefix

COST = {"added_p50_ms": {"bare": 0.8, "gateway": 0.9}, "added_ratio": 1.1}
MEMORY = {"growth_ratio": 1.01, "streams": 10, "streams_alive_at_end": 10}


@pytest.mark.slow
async def test_four_engines_with_shared_prompts_reuse_two_and_a_half_times_what_round_robin_does() -> None:
    figures = await measure_prefix(PrefixPlan(num_documents=24, num_questions=5, cache_documents=9))
    computed = figures["computed_prompt_tokens"]
    assert figures["hit_ratio_over_round_robin"] >= 2.5
    assert computed["prefix_aware"] < computed["round_robin"]


def test_documents_differ_from_their_first_block_on() -> None:
    beginnings = {document(number, 600)[:256] for number in range(50)}
    assert len(beginnings) == 50
    assert document(7, 600) == document(7, 600)


def test_reuse_is_what_was_found_of_what_was_read() -> None:
    reuse = Reuse(prompt_tokens=200, cached_tokens=150)
    assert (reuse.hit_ratio, reuse.computed_tokens) == (0.75, 50)
    assert Reuse().hit_ratio == 0.0


def test_a_path_adds_the_median_over_its_windows_whatever_a_few_of_them_met() -> None:
    own = {"direct": 0.001, "bare": 0.002, "bare_like_gateway": 0.0018, "gateway": 0.0022}
    windows = {name: [[own[name]] * 10, [own[name]] * 10, [own[name] + 5.0] * 10] for name in PATHS}
    figures = compare(500.0, windows)
    assert figures["added_p50_ms"] == {"bare": 1.0, "bare_like_gateway": 0.8, "gateway": 1.2}
    assert (figures["added_ratio"], figures["added_ratio_like_gateway"]) == (1.2, 1.5)


@pytest.mark.parametrize(
    ("figures", "is_kept"),
    [
        ({"cost": COST, "memory": MEMORY}, True),
        ({"cost": {**COST, "added_ratio": 1.6}}, False),
        ({"cost": {**COST, "added_p50_ms": {"bare": 2.0, "gateway": 1.1}}}, False),
        ({"memory": {**MEMORY, "growth_ratio": 1.2}}, False),
        ({"memory": {**MEMORY, "streams_alive_at_end": 9}}, False),
        ({"prefix": {"hit_ratio_over_round_robin": 2.4}}, False),
    ],
)
def test_a_promise_that_is_not_kept_is_a_failure(figures: dict[str, Any], is_kept: bool) -> None:
    assert is_within_promises(figures) is is_kept


def test_a_wait_is_told_in_time_and_in_answers_to_the_other_tenant_begun_meanwhile() -> None:
    quiet = Waits(sent=[1.0, 5.0], heard=[4.0, 5.5], num_refused=1, end=6.0)
    figures = quiet.figures(Waits(sent=[0.0] * 4, heard=[0.5, 3.0, 2.0, 7.0]))
    assert (figures["answered"], figures["refused"]) == (2, 1)
    assert (figures["p50_ms"], figures["p50_passed_by"]) == (1750.0, 1.0)
    assert Waits(num_refused=3).figures(quiet) == {"answered": 0, "refused": 3}


@pytest.mark.slow
async def test_what_an_engine_takes_of_a_flood_and_what_it_refuses_are_told_apart() -> None:
    plan = FairnessPlan(num_engines=1, max_num_seqs=1, max_queued=0, step_ms=100, num_loud=6, num_quiet=0)
    figures = await measure_way(plan, Way())
    loud, quiet = figures[LOUD], figures[QUIET]
    assert loud["answered"] >= 1
    assert loud["refused"] >= 1
    assert loud["answered"] + loud["refused"] == 6
    assert quiet["answered"] + quiet["refused"] == 0
