from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from engine_builders import make_request, make_scheduler, make_sim_runner
from tidemill_engine.batch import Batch
from tidemill_engine.core.engine import EngineCore, StepReport, split_rows
from tidemill_engine.core.stats import StatsCollector
from tidemill_engine.messages import EngineRequest
from tidemill_engine.runner.base import RunnerLost
from tidemill_engine.runner.sim import SimRunner
from tidemill_engine.scheduler.base import StepOutputs
from tidemill_engine.step import SchedulerOutput, StepResult, TokenMasks, int_array

NOTHING = StepOutputs(handles=np.empty(0, dtype=np.int64), token_ids=int_array(), special=[])


class BrittleRunner(SimRunner):
    """Raises while a step holds a row that a poisonous request was given."""

    poison: int
    fails_in_sample = False

    def _check(self, rows: list[int]) -> None:
        if any(self._tables.token_ids[row, 0] == self.poison for row in rows):
            raise RuntimeError("poisoned")

    def _compute(self, step_id: int, batch: Batch) -> StepResult:
        if not self.fails_in_sample:
            self._check(batch.row_index.tolist())
        return super()._compute(step_id, batch)

    def sample(self, masks: TokenMasks | None) -> StepResult:
        if self.fails_in_sample:
            try:
                self._check(self._launched[0].rows.tolist())
            except RuntimeError:
                self._launched.popleft()
                raise
        return super().sample(masks)


def make_engine(runner: SimRunner) -> EngineCore:
    clock = itertools.count()
    return EngineCore(make_scheduler(runner.info), runner, lambda: float(next(clock)))


@dataclass
class Told:
    """What each request was told, by its id."""

    tokens: dict[str, list[int]]
    errors: dict[str, str]


def run(engine: EngineCore, requests: list[EngineRequest]) -> Told:
    told = Told(tokens={request.request_id: [] for request in requests}, errors={})
    names = {request.handle: request.request_id for request in requests}
    for request in requests:
        assert engine.add(request) is None
    while (output := engine.schedule()) is not None or engine.num_in_flight:
        report = engine.advance(output)
        if report is None:
            continue
        outputs = report.outputs
        for handle, token in zip(outputs.handles.tolist(), outputs.token_ids.tolist(), strict=True):
            told.tokens[names[handle]].append(token)
        for special in outputs.special:
            told.tokens[special.request_id] += special.token_ids
            if special.finish_reason == "error":
                told.errors[special.request_id] = str(special.error)
    assert not engine.has_work()
    return told


def test_a_deeper_pipe_gives_the_same_tokens() -> None:
    requests = [make_request(name, prompt_len=length, max_tokens=9) for name, length in (("a", 3), ("b", 40))]
    plain = run(make_engine(make_sim_runner()), requests)
    deep = make_sim_runner(depth=2)
    assert run(make_engine(deep), requests) == plain


def test_the_next_step_is_launched_before_the_oldest_has_ended() -> None:
    engine = make_engine(make_sim_runner(depth=2))
    engine.add(make_request("a", max_tokens=5))
    assert engine.advance(engine.schedule()) is None
    assert engine.num_in_flight == 1
    assert engine.advance(engine.schedule()) is not None
    assert engine.num_in_flight == 1


def test_a_request_that_breaks_the_launch_of_a_deep_pipe_ends_alone() -> None:
    first, last = (make_request(name, prompt_len=5, max_tokens=6) for name in ("a", "b"))
    expected = run(make_engine(make_sim_runner()), [first, last])
    sim = make_sim_runner(depth=2)
    runner = BrittleRunner(sim._model, sim.info, num_rows=8, sleep=lambda _: None)
    runner.poison = 4000
    told = run(make_engine(runner), [first, make_request("poison", prompt=[4000, 300], max_tokens=4), last])
    assert list(told.errors) == ["poison"]
    assert told.tokens["a"] == expected.tokens["a"]
    assert told.tokens["b"] == expected.tokens["b"]


def test_a_step_that_fails_with_another_behind_it_is_the_end() -> None:
    sim = make_sim_runner(depth=2)
    runner = BrittleRunner(sim._model, sim.info, num_rows=8, sleep=lambda _: None)
    runner.poison, runner.fails_in_sample = 4000, True
    with pytest.raises(RunnerLost, match="poisoned"):
        run(make_engine(runner), [make_request("poison", prompt=[4000, 300], max_tokens=4)])


class BreakingRunner(SimRunner):
    """A device on which a step fails, and after that nothing can be computed."""

    num_launches = 0

    def launch(self, output: SchedulerOutput) -> None:
        self.num_launches += 1
        if self.num_launches == 1:
            raise RuntimeError("a kernel fails")
        raise RunnerLost("the device has failed")


def test_a_device_that_breaks_while_rows_are_tried_alone_is_the_end() -> None:
    sim = make_sim_runner()
    runner = BreakingRunner(sim._model, sim.info, num_rows=8, sleep=lambda _: None)
    with pytest.raises(RunnerLost, match="the device has failed"):
        run(make_engine(runner), [make_request("a"), make_request("b")])


@pytest.mark.parametrize("fails_in_sample", [False, True])
def test_a_request_that_breaks_the_step_ends_alone(fails_in_sample: bool) -> None:
    first, last = (make_request(name, prompt_len=5, max_tokens=4) for name in ("a", "b"))
    expected = run(make_engine(make_sim_runner()), [first, last])

    sim = make_sim_runner()
    runner = BrittleRunner(sim._model, sim.info, num_rows=8, sleep=lambda _: None)
    runner.poison = 4000
    runner.fails_in_sample = fails_in_sample
    engine = make_engine(runner)
    poison = make_request("poison", prompt=[4000, 300], max_tokens=4)
    told = run(engine, [first, poison, last])
    assert list(told.errors) == ["poison"]
    assert "poisoned" in told.errors["poison"]
    for request in (first, last):
        assert told.tokens[request.request_id] == expected.tokens[request.request_id]
    engine.scheduler.check_integrity()
    assert engine.scheduler.stats().num_free_blocks == 64


def test_a_step_split_into_rows_computes_the_same_tokens_once_each() -> None:
    runner = make_sim_runner()
    scheduler = make_scheduler(runner.info, max_num_batched_tokens=12)
    for name, length in (("a", 3), ("b", 4), ("c", 30)):
        scheduler.add(make_request(name, prompt_len=length), seed=0)
    output = scheduler.schedule(0.0)
    assert output is not None
    parts = split_rows(output)
    assert [part.num_tokens for part in parts] == output.num_scheduled_tokens.tolist() == [3, 4, 5]
    assert [part.logit_rows.tolist() for part in parts] == [[2], [3], []]
    assert [len(part.new_rows) for part in parts] == [1, 1, 1]
    assert sum(len(part.block_appends.rows) for part in parts) == len(output.block_appends.rows)


def test_requests_without_a_seed_get_different_ones_and_given_seeds_are_kept() -> None:
    runner = make_sim_runner()
    engine = make_engine(runner)
    for name, seed in (("a", None), ("b", None), ("c", 5), ("d", 5)):
        engine.add(make_request(name, seed=seed))
    output = engine.schedule()
    assert output is not None
    seeds = [new_row.seed for new_row in output.new_rows]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [5, 5]


def test_figures_are_due_every_tenth_of_a_second_and_counters_grow() -> None:
    runner = make_sim_runner()
    engine = make_engine(runner)
    collector = StatsCollector(engine.scheduler)
    engine.add(make_request("a", prompt_len=5, max_tokens=3))
    assert collector.is_due(10.0)
    for _ in range(2):
        output = engine.schedule()
        assert output is not None
        collector.add_step(engine.run(output))
    first = collector.take(10.0)
    assert (first.num_steps, first.num_running) == (2, 1)
    assert (first.prompt_tokens, first.generation_tokens) == (5, 2)
    assert first.iteration_tokens == [5, 1]
    assert len(first.inter_token_seconds) == 1
    assert not collector.is_due(10.05)
    assert collector.is_due(10.2)
    assert collector.take(10.2).iteration_tokens == []


def test_the_predicted_step_time_is_that_of_the_slowest_steps_of_late() -> None:
    collector = StatsCollector(make_scheduler(make_sim_runner().info))
    assert collector.predicted_seconds(100) == math.inf, "nothing is known before the first step"
    collector.add_step(StepReport(outputs=NOTHING, num_tokens=10, seconds=2.0))
    assert collector.predicted_seconds(10) == pytest.approx(2.0)
    assert collector.predicted_seconds(100) == pytest.approx(20.0)
    for _ in range(200):
        collector.add_step(StepReport(outputs=NOTHING, num_tokens=10, seconds=0.1))
    assert collector.predicted_seconds(10) == pytest.approx(0.1, rel=0.01)
