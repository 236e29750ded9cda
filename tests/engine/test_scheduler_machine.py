"""Any interleaving of what can happen to requests, over a runner that fails a row which reads wrong KV.

Prompts are cut from few texts, so that prefixes are shared, led, cached, evicted and forked; the pool is
small, so that rows are preempted, by swap and by recompute.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_builders import Harness, make_harness, make_request, make_sim_runner
from examples import examples
from tidemill_engine.config import OrderConfig
from tidemill_engine.scheduler.plan import StepPlan
from tidemill_engine.scheduler.seams import Seams
from tidemill_engine.step import SchedulerOutput

TEXTS = [[300 + 50 * text + index for index in range(48)] for text in range(3)]
OWN_WORD = 2000
ORDERS = [OrderConfig(), OrderConfig(policy="sjf"), OrderConfig(policy="slo")]


@cache
def alone(prompt: tuple[int, ...], sibling: int, num_tokens: int) -> list[int]:
    """Return what a prompt is answered when nobody else is served and nothing is cached, cut or moved."""
    harness = make_harness(
        num_blocks=64, max_num_batched_tokens=1024, max_num_seqs=1, is_prefix_caching=False, block_size=32
    )
    harness.add(make_request("alone", prompt=list(prompt), max_tokens=num_tokens, sibling=sibling))
    harness.run()
    return harness.tokens("alone")


class Coin:
    """Costs that choose swap and recompute in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def swap_seconds(self, num_blocks: int) -> float:
        self._turn += 1
        return float(num_blocks * (self._turn % 2))

    def recompute_seconds(self, num_tokens: int) -> float:
        return 0.5 * min(num_tokens, 1)


class SchedulerMachine(RuleBasedStateMachine):
    """A scheduler of random size; hypothesis chooses what happens next."""

    @initialize(
        depth=st.integers(1, 2),
        num_blocks=st.integers(4, 24),
        num_swap_blocks=st.sampled_from([0, 3, 24]),
        budget=st.integers(1, 24),
        max_num_seqs=st.integers(1, 6),
        choices=st.fixed_dictionaries(
            {
                "is_chunked_prefill": st.booleans(),
                "max_chunk_tokens": st.integers(1, 24),
                "admission": st.sampled_from(["adaptive", "strict"]),
                "order": st.sampled_from(ORDERS),
                "is_preempting_lower_classes": st.booleans(),
            }
        ),
    )
    def build(self, choices: dict[str, Any], **sizes: int) -> None:
        self.budget = sizes.pop("budget")
        self.harness = make_harness(
            **sizes, **choices, max_num_batched_tokens=self.budget, seams=Seams(costs=Coin())
        )
        self.capacity = sizes["num_blocks"] * 4
        if not choices["is_chunked_prefill"]:
            self.budget = max(self.budget, self.capacity)
        self.max_num_seqs = sizes["max_num_seqs"]
        self.sent: dict[str, tuple[tuple[int, ...], int, int]] = {}
        self.aborted: set[str] = set()
        self.num_checked = 0

    @rule(
        text=st.integers(0, len(TEXTS) - 1),
        length=st.integers(1, 48),
        has_own_end=st.booleans(),
        max_tokens=st.integers(1, 20),
        terms=st.fixed_dictionaries(
            {"tenant": st.sampled_from(["", "other"]), "priority": st.integers(0, 2)}
        ),
        copies=st.integers(1, 3),
    )
    def add(
        self, text: int, length: int, has_own_end: bool, max_tokens: int, terms: dict[str, Any], copies: int
    ) -> None:
        prompt = TEXTS[text][:length]
        if has_own_end:
            prompt = [*prompt[:-1], OWN_WORD + len(self.sent)]
        for sibling in range(copies):
            name = f"r{len(self.sent)}"
            self.sent[name] = (tuple(prompt), sibling, max_tokens)
            self.harness.add(
                make_request(name, prompt=prompt, max_tokens=max_tokens, sibling=sibling, **terms)
            )

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sent)))
        if all(output.request_id != name or not output.finish_reason for output in self.harness.outputs):
            self.aborted.add(name)
        self.harness.abort(name)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.harness.step()

    @rule(max_blocks=st.integers(1, 24))
    def compact(self, max_blocks: int) -> None:
        self.harness.scheduler.compact(max_blocks)

    @rule()
    def preempt_somebody(self) -> None:
        scheduler = self.harness.scheduler
        plan_of = scheduler.schedule

        def schedule(now: float) -> SchedulerOutput | None:
            plan = StepPlan(step_id=scheduler._step_id, now=now, token_budget=0, prefill_budget=0)
            scheduler._preemptor.hand_over(plan)
            victim = scheduler._preemptor.choose(plan.step_id, spares_resumed=False)
            if victim is not None:
                scheduler._preempt(victim, plan)
            scheduler._preemptor.carry(plan)
            return plan_of(now)

        scheduler.schedule = schedule  # type: ignore[method-assign]
        self.harness.step()
        scheduler.schedule = plan_of  # type: ignore[method-assign]

    @invariant()
    def budgets_hold_and_books_balance(self) -> None:
        if not hasattr(self, "harness"):
            return
        for output in self.harness.steps[self.num_checked :]:
            assert output.num_tokens <= self.budget
            assert len(output.rows) <= self.max_num_seqs
        self.num_checked = len(self.harness.steps)
        self.harness.scheduler.check_integrity()
        sharing, kv = self.harness.scheduler._sharing, self.harness.scheduler._kv
        assert not any(kv.knows(digest) for digest in sharing._leaders), "nobody waits for what is cached"

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.run()
        stats = self.harness.scheduler.stats()
        assert stats.num_free_blocks == stats.num_total_blocks
        assert stats.num_free_swap_blocks == stats.num_swap_blocks
        for name in self.sent:
            self.check_answer(name)

    def check_answer(self, name: str) -> None:
        prompt, sibling, max_tokens = self.sent[name]
        finish, tokens = self.harness.finish(name), self.harness.tokens(name)
        if len(prompt) + 1 > self.capacity:
            assert finish.finish_reason == "error"
            return
        wanted = min(max_tokens, self.capacity - len(prompt))
        expected = alone(prompt, sibling, 20)[:wanted]
        assert finish.finish_reason == ("abort" if name in self.aborted else "length"), finish.error
        assert tokens == expected[: len(tokens)]
        assert name in self.aborted or len(tokens) == wanted


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(examples(120), stateful_step_count=25)


def test_the_oracle_notices_a_block_that_two_rows_write() -> None:
    runner = make_sim_runner()
    harness = make_harness()
    for name in "ab":
        harness.add(make_request(name, prompt_len=6))
    output = harness.scheduler.schedule(0.0)
    assert output is not None
    spoilt = output.block_appends.block_ids
    spoilt[:] = spoilt[0]
    runner.launch(output)
    assert "the KV cache is spoilt" in runner.sample(None).failures[0].message


def random_traffic(num_requests: int, seed: int) -> Harness:
    """Serve many random requests, abort some, and check the books now and then."""
    generator = np.random.default_rng(seed)
    harness = make_harness(
        depth=1 + seed % 2,
        num_blocks=60,
        num_swap_blocks=20,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        seams=Seams(costs=Coin()),
    )
    harness.checks_every_step = False
    for index in range(num_requests):
        prompt = TEXTS[int(generator.integers(3))][: int(generator.integers(1, 48))]
        harness.add(make_request(f"r{index}", prompt=prompt, max_tokens=int(generator.integers(1, 16))))
        if generator.random() < 0.15:
            harness.abort(f"r{int(generator.integers(max(0, index - 20), index + 1))}")
        harness.step()
        while harness.scheduler.stats().num_waiting > 20:
            harness.step()
        if index % 100 == 0:
            harness.scheduler.check_integrity()
    harness.run(max_steps=10 * num_requests)
    ended = [output for output in harness.outputs if output.finish_reason is not None]
    assert len(ended) == len({output.request_id for output in ended}) == num_requests
    assert all(output.error is None for output in ended)
    return harness


@pytest.mark.parametrize("seed", [0, 1])
def test_a_thousand_random_requests_with_aborts_leave_the_pool_intact(seed: int) -> None:
    harness = random_traffic(1000, seed)
    harness.scheduler.check_integrity()
    assert harness.scheduler.stats().num_free_blocks == 60
    assert harness.scheduler.stats().num_free_swap_blocks == 20


@pytest.mark.slow
def test_ten_thousand_random_requests_with_aborts_leave_the_pool_intact() -> None:
    harness = random_traffic(10_000, 3)
    harness.scheduler.check_integrity()
    assert harness.scheduler.stats().num_free_blocks == 60
