from __future__ import annotations

import pytest

from engine_builders import make_harness, make_request, make_scheduler, make_sim_runner
from tidemill_engine.batch import Batch
from tidemill_engine.core.engine import EngineCore
from tidemill_engine.messages import RequestOutput
from tidemill_engine.runner.sim import SimRunner
from tidemill_engine.scheduler.base import StepOutputs
from tidemill_engine.scheduler.seams import Seams
from tidemill_engine.step import StepResult


class Swaps:
    """Costs by which copying always pays."""

    def swap_seconds(self, num_blocks: int) -> float:
        return 0.0

    def recompute_seconds(self, num_tokens: int) -> float:
        return 1.0


class Brittle(SimRunner):
    """Fails whenever it computes several rows at once, after its copies."""

    num_failures = 0

    def _compute(self, step_id: int, batch: Batch) -> StepResult:
        if len(batch.row_index) > 1:
            self.num_failures += 1
            raise RuntimeError("too many rows")
        return super()._compute(step_id, batch)


def tokens_by_request(ids: dict[int, str], outputs: list[StepOutputs]) -> dict[str, list[int]]:
    told: dict[str, list[int]] = {name: [] for name in ids.values()}
    for output in outputs:
        for handle, token in zip(output.handles.tolist(), output.token_ids.tolist(), strict=True):
            told[ids[handle]].append(token)
        for special in output.special:
            assert isinstance(special, RequestOutput)
            assert special.error is None
            told[special.request_id] += special.token_ids
    return told


@pytest.mark.parametrize("num_swap_blocks", [0, 32])
def test_a_step_that_fails_is_repeated_row_by_row_without_copying_again(num_swap_blocks: int) -> None:
    info = make_sim_runner(num_blocks=12, num_swap_blocks=num_swap_blocks).info
    whole = make_sim_runner(num_blocks=12, num_swap_blocks=num_swap_blocks)
    runner = Brittle(whole._model, info, num_rows=8, sleep=lambda _seconds: None)
    scheduler = make_scheduler(info, max_num_batched_tokens=64, seams=Seams(costs=Swaps()))
    engine = EngineCore(scheduler, runner, lambda: 1.0)
    requests = [make_request(name, prompt_len=8, max_tokens=24) for name in "abc"]
    for request in requests:
        assert engine.add(request) is None
    outputs = []
    while scheduler.has_work():
        step = engine.schedule()
        assert step is not None
        outputs.append(engine.run(step).outputs)
    told = tokens_by_request({request.handle: request.request_id for request in requests}, outputs)
    assert runner.num_failures > 10
    assert scheduler.stats().num_preemptions > 0
    for request in requests:
        harness = make_harness(num_blocks=64)
        harness.add(request)
        harness.run()
        assert told[request.request_id] == harness.tokens(request.request_id)
