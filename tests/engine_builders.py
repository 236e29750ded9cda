"""Builders with defaults for tests of the engine core, and a harness that drives a scheduler at any depth."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tidemill_engine.config import SchedulerConfig, Watermarks
from tidemill_engine.kv import KVCacheManager, PrefixRoots
from tidemill_engine.messages import EngineRequest, RequestOutput, SamplingParams
from tidemill_engine.model_uri import SimModel
from tidemill_engine.request import RequestLimits
from tidemill_engine.runner.base import ModelRunner, RunnerInfo
from tidemill_engine.runner.sim import SimRunner
from tidemill_engine.scheduler import ContinuousScheduler, create_scheduler
from tidemill_engine.scheduler.base import StepOutputs
from tidemill_engine.scheduler.seams import Seams
from tidemill_engine.sim_vocab import EOS, VOCAB_SIZE
from tidemill_engine.step import SchedulerOutput, StepResult

_HANDLES = itertools.count(1)


def make_request(
    request_id: str = "r",
    *,
    prompt: list[int] | None = None,
    prompt_len: int = 5,
    max_tokens: int = 4,
    ignore_eos: bool = True,
    tenant: str = "",
    priority: int = 0,
    needs_all_positions: bool = False,
    sibling: int = 0,
    **sampling: object,
) -> EngineRequest:
    """Return a request whose prompt is words of the sim vocabulary, different for each id."""
    if prompt is None:
        generator = np.random.default_rng(sum(request_id.encode()))
        prompt = generator.integers(300, VOCAB_SIZE, prompt_len).tolist()
    return EngineRequest(
        request_id=request_id,
        handle=next(_HANDLES),
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, **sampling),  # type: ignore[arg-type]
        arrival_time=0.0,
        tenant=tenant,
        priority=priority,
        needs_all_positions=needs_all_positions,
        sibling=sibling,
    )


def make_sim_runner(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    num_rows: int = 8,
    max_model_len: int = 4096,
    output_tokens: int | None = None,
    num_swap_blocks: int = 0,
    depth: int = 1,
) -> SimRunner:
    """Return a fake runner that takes no time."""
    info = RunnerInfo(
        vocab_size=VOCAB_SIZE,
        max_model_len=min(max_model_len, num_blocks * block_size),
        num_blocks=num_blocks,
        block_size=block_size,
        dtype="sim",
        eos_token_ids=frozenset({EOS}),
        num_swap_blocks=num_swap_blocks,
        depth=depth,
    )
    model = SimModel(name="test", step_ms=0, output_tokens=output_tokens)
    return SimRunner(model, info, num_rows=num_rows, sleep=lambda _seconds: None)


def make_scheduler(
    info: RunnerInfo,
    *,
    is_prefix_caching: bool = True,
    watermarks: Watermarks | None = None,
    seams: Seams | None = None,
    **config: Any,
) -> ContinuousScheduler:
    """Return a scheduler for a runner; further arguments are fields of `SchedulerConfig`.

    It is typed as the continuous one: tests look inside that only.
    """
    scheduler_config = SchedulerConfig(
        **{"max_num_seqs": 8, "max_num_batched_tokens": 16} | config, watermarks=watermarks or Watermarks()
    )
    limits = RequestLimits(
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        max_cached_tokens=info.num_blocks * info.block_size,
        eos_token_ids=info.eos_token_ids,
    )
    kv = KVCacheManager(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        num_rows=scheduler_config.max_num_seqs,
        max_tokens_per_row=limits.max_sequence_tokens,
        num_swap_blocks=info.num_swap_blocks,
        roots=PrefixRoots(b"key of the tests", "test") if is_prefix_caching else None,
    )
    return cast("ContinuousScheduler", create_scheduler(scheduler_config, kv, limits, seams))


@dataclass(kw_only=True)
class Harness:
    """A scheduler and a runner stepped by hand; at depth 2 a step is scheduled before the last's update."""

    scheduler: ContinuousScheduler
    runner: ModelRunner
    depth: int = 1
    checks_every_step: bool = True
    now: float = 0.0
    outputs: list[RequestOutput] = field(default_factory=list)
    steps: list[SchedulerOutput] = field(default_factory=list)
    _ids: dict[int, str] = field(default_factory=dict)
    _touched: deque[dict[int, set[int]]] = field(default_factory=deque)
    _results: deque[StepResult] = field(default_factory=deque)

    def add(self, request: EngineRequest, seed: int = 0) -> None:
        """Add a request and keep the refusal, if any."""
        self._ids[request.handle] = request.request_id
        refused = self.scheduler.add(
            request, request.sampling.seed if request.sampling.seed is not None else seed
        )
        if refused is not None:
            self.outputs.append(refused)

    def abort(self, request_id: str) -> None:
        """Abort a request and keep the output, if any."""
        output = self.scheduler.abort(request_id)
        if output is not None:
            self.outputs.append(output)

    def step(self) -> bool:
        """Schedule a step if possible, update the oldest when the pipe is full; False if nothing moved."""
        self.now += 1.0
        output = self.scheduler.schedule(self.now)
        if output is not None:
            check_step(output)
            self.steps.append(output)
            self.runner.launch(output)
            self._results.append(self.runner.sample(None))
            if self.checks_every_step:
                self._check_blocks(output)
        if self._results and (len(self._results) >= self.depth or output is None):
            self.outputs += self.spelled_out(self.scheduler.update(self._results.popleft(), self.now))
            if self._touched:
                self._touched.popleft()
            if self.checks_every_step:
                self.scheduler.check_integrity()
            return True
        return output is not None

    def _check_blocks(self, output: SchedulerOutput) -> None:
        """Fail if a step writes what another row's step in flight reads, or gives its row away."""
        table, size = self.scheduler._kv.block_table, self.scheduler._kv.block_size
        touched: dict[int, set[int]] = {}
        written: dict[int, set[int]] = {}
        ends = output.start_pos + output.num_scheduled_tokens
        for row, start, end in zip(
            output.rows.tolist(), output.start_pos.tolist(), ends.tolist(), strict=True
        ):
            touched[row] = set(table[row, : -(-end // size)].tolist())
            written[row] = set(table[row, start // size : -(-end // size)].tolist())
        written[-1] = {*output.block_copies[:, 1].tolist(), *output.swap_in[:, 1].tolist()}
        new_rows = {new_row.row for new_row in output.new_rows}
        for in_flight in self._touched:
            assert not new_rows & set(in_flight), "a row was given away while a step used it"
            for row, blocks in in_flight.items():
                for writer, targets in written.items():
                    assert writer == row or not targets & blocks, "a block was reused while a step used it"
        self._touched.append(touched)

    def spelled_out(self, outputs: StepOutputs) -> list[RequestOutput]:
        """Return columns as if each of their tokens were an output of its own, and the special ones."""
        plain = [
            RequestOutput(request_id=self._ids[handle], token_ids=[token])
            for handle, token in zip(outputs.handles.tolist(), outputs.token_ids.tolist(), strict=True)
        ]
        return [*plain, *outputs.special]

    def run(self, max_steps: int = 20_000) -> None:
        """Step until every request has ended."""
        for _ in range(max_steps):
            if not self.scheduler.has_work() and not self._results:
                return
            if not self.step():
                raise AssertionError(f"stuck: {self.scheduler.stats()}")
        raise AssertionError(f"not done after {max_steps} steps: {self.scheduler.stats()}")

    def tokens(self, request_id: str) -> list[int]:
        """Return what a request was given."""
        return [token for o in self.outputs if o.request_id == request_id for token in o.token_ids]

    def finish(self, request_id: str) -> RequestOutput:
        """Return the one output that ends a request."""
        (last,) = [o for o in self.outputs if o.request_id == request_id and o.finish_reason is not None]
        return last


def check_step(output: SchedulerOutput) -> None:
    """Fail unless a step obeys the contract that every runner relies on."""
    assert len(output.rows) == len(set(output.rows.tolist())), "a row stands twice in a step"
    assert np.all(output.num_scheduled_tokens >= 1)
    for array in (output.rows, output.num_scheduled_tokens, output.start_pos, output.logit_rows):
        assert array.dtype == np.int32
    assert np.all(np.diff(output.logit_rows) > 0)
    assert output.logit_rows.size == 0 or output.logit_rows[-1] < output.num_tokens
    is_chunk = output.num_scheduled_tokens > 1
    new = {new_row.row for new_row in output.new_rows}
    decodes = [row for row, chunk in zip(output.rows.tolist(), is_chunk, strict=True) if not chunk]
    assert new | set(decodes) | set(output.rows[is_chunk].tolist()) == set(output.rows.tolist())


def make_harness(
    *,
    depth: int = 1,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    output_tokens: int | None = None,
    num_swap_blocks: int = 0,
    max_model_len: int = 4096,
    **scheduler: Any,
) -> Harness:
    """Return a scheduler on a fake runner; further arguments are those of `make_scheduler`."""
    runner = make_sim_runner(
        num_blocks=num_blocks,
        block_size=block_size,
        num_rows=max_num_seqs,
        output_tokens=output_tokens,
        num_swap_blocks=num_swap_blocks,
        max_model_len=max_model_len,
    )
    return Harness(
        scheduler=make_scheduler(runner.info, max_num_seqs=max_num_seqs, **scheduler),
        runner=runner,
        depth=depth,
    )


def alone(prompt: list[int], max_tokens: int) -> list[int]:
    """Return what the sim model answers when nobody else is served and nothing is cut."""
    harness = make_harness(num_blocks=512, max_num_batched_tokens=2048)
    harness.add(make_request("alone", prompt=prompt, max_tokens=max_tokens))
    harness.run()
    return harness.tokens("alone")
