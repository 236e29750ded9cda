"""What the runner with the C++ kernels does around its one call; the call itself is a stand-in here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tidemill_engine.runner.base import RunnerInfo
from tidemill_engine.runner.native_cpu import NativeRunner
from tidemill_engine.step import BlockAppends, SchedulerOutput, int_array


class Noted:
    """An engine and a cache's backing that write down what they are asked for, in order."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.shape = SimpleNamespace(num_layers=1)
        self.block_elements = 4

    def step(self, *_arrays: object, **_options: object) -> tuple[Any, Any, None]:
        self.calls.append("step")
        return np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.bool_), None

    def note(self, block_ids: Any) -> None:
        self.calls.append(block_ids.tolist())


def decode(step_id: int, position: int, block_id: int) -> SchedulerOutput:
    """Return a step of one row that is given a block."""
    one = int_array([1])
    return SchedulerOutput(
        step_id=step_id,
        rows=one - 1,
        num_scheduled_tokens=one,
        num_draft_tokens=one - 1,
        start_pos=int_array([position]),
        adapter_slot=one - 1,
        logit_rows=one - 1,
        block_appends=BlockAppends(
            rows=one - 1, positions=int_array([position // 2]), block_ids=int_array([block_id])
        ),
    )


def test_memory_is_backed_beside_a_step_for_the_blocks_of_the_one_before() -> None:
    noted = Noted()
    info = RunnerInfo(
        vocab_size=10,
        max_model_len=16,
        num_blocks=8,
        block_size=2,
        dtype="bfloat16",
        eos_token_ids=frozenset(),
    )
    runner = NativeRunner(cast("Any", noted), info, num_rows=1, ahead_blocks=2)
    runner._is_plain[:] = True
    runner._backing = cast("Any", noted)
    for step_id in range(3):
        runner.launch(decode(step_id, 2 * step_id, 5 + step_id))
        assert noted.calls[-1] == "step", "nothing stands between a step and its tokens"
        runner.sample(None)
    assert noted.calls == [[], "step", [5], "step", [6], "step"]
