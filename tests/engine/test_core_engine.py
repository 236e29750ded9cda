from __future__ import annotations

import itertools

import pytest

from engine_builders import make_request, make_scheduler, make_sim_runner
from tidemill_engine.core.engine import EngineCore, StepReport, split_rows
from tidemill_engine.core.stats import StatsCollector
from tidemill_engine.messages import RequestOutput
from tidemill_engine.runner.sim import SimRunner
from tidemill_engine.step import SchedulerOutput, StepResult, TokenMasks


class BrittleRunner(SimRunner):
    """Raises while a step holds a row that a poisonous request was given."""

    poison: int
    fails_in_sample = False

    def _check(self, rows: list[int]) -> None:
        if any(self._tables.token_ids[row, 0] == self.poison for row in rows):
            raise RuntimeError("poisoned")

    def launch(self, output: SchedulerOutput) -> None:
        self._tables.apply(output)
        if not self.fails_in_sample:
            self._check(output.rows.tolist())
        super().launch(output)

    def sample(self, masks: TokenMasks | None) -> StepResult:
        if self.fails_in_sample:
            _, batch = self._launched[0]
            try:
                self._check(batch.row_index.tolist())
            except RuntimeError:
                self._launched.popleft()
                raise
        return super().sample(masks)


def make_engine(runner: SimRunner) -> EngineCore:
    clock = itertools.count()
    return EngineCore(make_scheduler(runner.info), runner, lambda: float(next(clock)))


def run(engine: EngineCore) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    while (output := engine.schedule()) is not None:
        outputs += engine.run(output).outputs
    assert not engine.scheduler.has_work()
    return outputs


def tokens(outputs: list[RequestOutput], request_id: str) -> list[int]:
    return [token for output in outputs if output.request_id == request_id for token in output.token_ids]


@pytest.mark.parametrize("fails_in_sample", [False, True])
def test_a_request_that_breaks_the_step_ends_alone(fails_in_sample: bool) -> None:
    requests = [make_request(name, prompt_len=5, max_tokens=4) for name in ("a", "b")]
    healthy = make_engine(make_sim_runner())
    for request in requests:
        healthy.add(request)
    expected = run(healthy)

    sim = make_sim_runner()
    runner = BrittleRunner(sim._model, sim.info, num_rows=8, sleep=lambda _: None)
    runner.poison = 4000
    runner.fails_in_sample = fails_in_sample
    engine = make_engine(runner)
    engine.add(requests[0])
    engine.add(make_request("poison", prompt=[4000, 300], max_tokens=4))
    engine.add(requests[1])
    outputs = run(engine)
    (bad,) = [output for output in outputs if output.request_id == "poison"]
    assert bad.finish_reason == "error"
    assert "poisoned" in str(bad.error)
    for request in requests:
        assert tokens(outputs, request.request_id) == tokens(expected, request.request_id)
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
    assert collector.predicted_seconds(100) == 0.0
    collector.add_step(StepReport(outputs=[], num_tokens=10, seconds=2.0))
    assert collector.predicted_seconds(10) == pytest.approx(2.0)
    assert collector.predicted_seconds(100) == pytest.approx(20.0)
    for _ in range(200):
        collector.add_step(StepReport(outputs=[], num_tokens=10, seconds=0.1))
    assert collector.predicted_seconds(10) == pytest.approx(0.1, rel=0.01)
