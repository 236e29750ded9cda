"""Orders, admission and chunk sizes in the continuous scheduler, over the sim runner and a counted clock."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import Harness, make_harness, make_request
from examples import examples
from tidemill_engine.config import ADMISSIONS, POLICIES, AdmissionMode, OrderConfig, Policy
from tidemill_engine.messages import EngineRequest
from tidemill_engine.scheduler.base import DecodeLoad
from tidemill_engine.scheduler.chunking import FittedChunks, WholeBudget
from tidemill_engine.scheduler.rows import RowTable
from tidemill_engine.scheduler.seams import Seams
from tidemill_engine.scheduler.step_model import FittedStep, StepModel

COSTS = FittedStep(coefficients=(0.01, 0.001, 0.0, 0.0, 0.0), residual_p90=0.0)


def make(policy: Policy = "fifo", **options: Any) -> Harness:
    weights = options.pop("tenant_weights", {})
    order = OrderConfig(policy=policy, tenant_weights=weights)
    return make_harness(order=order, **options)


def request(
    name: str, *, now: float = 0.0, terms: dict[str, Any] | None = None, **options: Any
) -> EngineRequest:
    return msgspec.structs.replace(make_request(name, **options), arrival_time=now, **(terms or {}))


def order_of_first_tokens(harness: Harness) -> list[str]:
    return list(dict.fromkeys(output.request_id for output in harness.outputs if output.token_ids))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", ["first", "class-1", "class-0", "urgent"]),
        ("priority", ["class-0", "first", "urgent", "class-1"]),
        ("slo", ["class-0", "urgent", "first", "class-1"]),
    ],
)
def test_the_policy_decides_who_runs_when_there_is_one_place(policy: Policy, expected: list[str]) -> None:
    harness = make(policy, max_num_seqs=1)
    harness.add(request("first", now=0.0))
    harness.add(request("class-1", now=0.1, terms={"priority": 1}))
    harness.add(request("class-0", now=0.2, terms={"priority": -1}))
    harness.add(request("urgent", now=0.3, terms={"ttft_slo_seconds": 25.0}))
    harness.run()
    assert order_of_first_tokens(harness) == expected


def test_beside_a_flood_another_tenant_gets_its_share_of_the_tokens() -> None:
    harness = make(max_num_seqs=4, num_blocks=256, max_num_batched_tokens=16)
    for index in range(200):
        harness.add(request(f"flood-{index}", prompt_len=8, max_tokens=8, terms={"tenant": "flood"}))
    for _ in range(20):
        harness.step()
    for index in range(20):
        harness.add(request(f"mine-{index}", prompt_len=8, max_tokens=8, terms={"tenant": "mine"}))
    before = len(order_of_first_tokens(harness))
    harness.run()
    begun = order_of_first_tokens(harness)[before:]
    assert begun[:50].count("mine-19") == 1, "the last of mine begins within the first 50, of 190 that wait"


@pytest.mark.parametrize("admission", ADMISSIONS)
@pytest.mark.parametrize("policy", POLICIES)
def test_twenty_blocks_eight_requests_two_of_them_large_all_finish_under_every_order(
    policy: Policy, admission: AdmissionMode
) -> None:
    harness = make(policy, num_blocks=20, block_size=4, admission=admission)
    for index in range(8):
        prompt = 12 * 4 if index in (2, 5) else 6
        terms = {"priority": index % 3, "tenant": f"t{index % 2}", "ttft_slo_seconds": 5.0 + index}
        harness.add(request(f"r{index}", prompt_len=prompt, max_tokens=10, terms=terms))
    harness.run()
    assert all(harness.finish(f"r{index}").finish_reason == "length" for index in range(8))


arrivals = st.lists(
    st.tuples(
        st.integers(1, 50),
        st.integers(1, 20),
        st.sampled_from("abc"),
        st.integers(-1, 2),
        st.one_of(st.none(), st.floats(0.5, 40.0)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=14,
)


@given(
    policy=st.sampled_from(POLICIES),
    admission=st.sampled_from(ADMISSIONS),
    depth=st.integers(1, 2),
    what=arrivals,
)
@examples(60)
def test_no_order_changes_a_token_or_keeps_anybody_waiting_for_ever(
    policy: Policy,
    admission: AdmissionMode,
    depth: int,
    what: list[tuple[int, int, str, int, float | None, int]],
) -> None:
    harness = make(
        policy, depth=depth, num_blocks=24, max_num_seqs=3, admission=admission, tenant_weights={"a": 3.0}
    )
    reference = make_harness(num_blocks=512, max_num_batched_tokens=64)
    for index, (prompt, output, tenant, priority, ttft, pause) in enumerate(what):
        terms = {"tenant": tenant, "priority": priority, "ttft_slo_seconds": ttft}
        message = request(f"r{index}", now=harness.now, prompt_len=prompt, max_tokens=output, terms=terms)
        harness.add(message)
        reference.add(message)
        for _ in range(pause):
            harness.step()
    harness.run()
    reference.run()
    for index in range(len(what)):
        assert harness.tokens(f"r{index}") == reference.tokens(f"r{index}")


def test_a_low_class_is_served_beside_an_endless_stream_of_a_high_one() -> None:
    harness = make("priority", max_num_seqs=2, max_num_batched_tokens=32)
    harness.add(request("poor", prompt_len=10, max_tokens=2, terms={"priority": 9}))
    for index in range(200):
        name = f"rich-{index}"
        harness.add(request(name, now=harness.now, prompt_len=10, max_tokens=2, terms={"priority": 0}))
        harness.add(request(f"{name}b", now=harness.now, prompt_len=10, max_tokens=2, terms={"priority": 0}))
        harness.step()
        if harness.tokens("poor"):
            return
    pytest.fail("never served")


def fitted_seams() -> Seams:
    def make_chunks(rows: RowTable) -> FittedChunks:
        return FittedChunks(StepModel(COSTS), lambda: rows.itl_slo_seconds, max_chunk_tokens=512)

    return Seams(make_chunks=make_chunks)


def test_a_running_request_s_inter_token_slo_bounds_the_chunks_beside_it() -> None:
    harness = make(seams=fitted_seams(), num_blocks=512, max_num_batched_tokens=512)
    harness.add(request("strict", prompt_len=4, max_tokens=40, terms={"itl_slo_seconds": 0.1}))
    harness.step()
    harness.add(request("long", prompt_len=400, max_tokens=2))
    harness.run()
    model = StepModel(COSTS)
    mixed = [step for step in harness.steps if len(step.rows) == 2 and step.num_tokens > 2]
    assert len(mixed) >= 4
    for step in mixed:
        assert 0.01 + 0.001 * (step.num_tokens + 16) <= 0.1 + 0.016 + 1e-9, "the chunk keeps the SLO"
    assert max(step.num_tokens for step in mixed) > 60, "and uses what it leaves"
    assert model.is_fitted


@pytest.mark.parametrize(
    ("sentence", "num_waiting", "prompt_len", "slo", "expected"),
    [
        ("a crowd joins one that runs in one step", 16, 30, None, 480),
        ("one that a step can't end is cut as ever", 16, 33, None, 431),
        ("so is one behind who promised short gaps", 16, 30, 0.1, 79),
        ("fewer are none", 15, 30, None, 415),
    ],
)
def test_a_crowd_that_one_step_can_serve_joins_in_one_step(
    sentence: str, num_waiting: int, prompt_len: int, slo: float | None, expected: int
) -> None:
    harness = make(seams=fitted_seams(), num_blocks=1024, max_num_batched_tokens=512, max_num_seqs=32)
    terms = {} if slo is None else {"itl_slo_seconds": slo}
    harness.add(request("runs", prompt_len=4, max_tokens=40, terms=terms))
    harness.step()
    harness.step()
    for index in range(num_waiting):
        prompt = [1 + (31 * index + place) % 97 for place in range(prompt_len)]
        harness.add(request(f"r{index}", prompt=prompt, max_tokens=2))
    harness.step()
    assert harness.steps[-1].num_tokens - 1 == expected, sentence


def test_what_is_cached_of_a_crowd_s_prompts_does_not_count() -> None:
    harness = make(seams=fitted_seams(), num_blocks=1024, max_num_batched_tokens=512, max_num_seqs=32)
    shared = list(range(300, 400))
    harness.add(request("runs", prompt=shared, max_tokens=40))
    harness.step()
    harness.step()
    for index in range(16):
        own = [1 + (31 * index + place) % 97 for place in range(30)]
        harness.add(request(f"r{index}", prompt=[*shared, *own], max_tokens=2))
    harness.step()
    assert harness.steps[-1].num_tokens == 1 + 16 * 30


class Watcher(WholeBudget):
    """Leaves chunks the whole budget and keeps how many were said to wait."""

    def __init__(self) -> None:
        self.num_waiting: list[int] = []

    def prefill_budget(self, step: DecodeLoad) -> int:
        self.num_waiting.append(step.num_waiting)
        return super().prefill_budget(step)


def test_chunks_are_sized_by_prompts_under_way_and_by_those_that_have_a_slot_to_take() -> None:
    watcher = Watcher()
    harness = make(seams=Seams(make_chunks=lambda _rows: watcher), max_num_seqs=4, max_num_batched_tokens=16)
    harness.add(request("runs", prompt_len=4, max_tokens=20))
    harness.step()
    harness.add(request("long", prompt_len=40, max_tokens=2))
    harness.step()
    for index in range(9):
        harness.add(request(f"late-{index}", prompt_len=4, max_tokens=2))
    harness.step()
    assert watcher.num_waiting == [1, 1, 3], "one under way, two of nine beside the two that have slots"


def test_one_long_prompt_beside_many_short_ones_both_kinds_move() -> None:
    harness = make(
        seams=fitted_seams(), max_model_len=12_000, num_blocks=2048, block_size=16, max_num_batched_tokens=256
    )
    harness.add(request("long", prompt_len=10_000, max_tokens=2))
    served_before_long = 0
    for index in range(400):
        if index % 4 == 0:
            harness.add(request(f"s{index}", now=harness.now, prompt_len=8, max_tokens=4))
        harness.step()
        if not harness.tokens("long"):
            served_before_long = sum(1 for output in harness.outputs if output.finish_reason)
    harness.run(50_000)
    assert served_before_long >= 6, "newcomers have a share of each step beside a long prompt"
    assert len(harness.tokens("long")) == 2


def test_the_oldest_is_not_passed_by_small_ones_for_ever_when_it_does_not_fit() -> None:
    harness = make(num_blocks=40, block_size=4, max_num_seqs=8)
    random = np.random.default_rng(0)
    for index in range(4):
        harness.add(request(f"fill-{index}", prompt_len=4, max_tokens=30))
    harness.step()
    harness.add(request("huge", now=harness.now, prompt_len=100, max_tokens=4))
    for index in range(600):
        length = int(random.integers(2, 8))
        harness.add(request(f"s{index}", now=harness.now, prompt_len=length, max_tokens=6))
        harness.step()
        if harness.tokens("huge"):
            break
    assert harness.tokens("huge"), "600 steps with a new small request in each"
