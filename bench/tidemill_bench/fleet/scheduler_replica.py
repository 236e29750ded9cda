"""A replica that is the engine's own scheduler, KV bookkeeping and learning, step by step on a virtual clock.

Knows how to turn fleet requests into the engine's messages and its outputs into times. Prompts have no
text: the prefix cache is off, and every prompt is a slice of the same tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_bench.engine_seam import EngineSetup, SimEngine, build_engine, told
from tidemill_bench.fleet.replica import Latencies
from tidemill_bench.simulator import make_result
from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.scheduler.step_model import features_of
from tidemill_operator.autoscaling.model import EngineFigures, StepTimes

if TYPE_CHECKING:
    from tidemill_bench.fleet.requests import FleetRequest
    from tidemill_bench.fleet.settings import Machine
    from tidemill_engine.step import SchedulerOutput

MAX_MODEL_LEN = 16_384
_TOKENS = [300 + i % 1000 for i in range(MAX_MODEL_LEN)]
_IDLE_TICK_SECONDS = 0.001


class SchedulerEngine:
    """One engine process around the real scheduler."""

    def __init__(self, machine: Machine, started: float) -> None:
        self._machine = machine
        self._started = self._now = started
        self._engine: SimEngine = build_engine(
            EngineSetup(
                max_num_seqs=machine.max_num_seqs,
                max_num_batched_tokens=machine.max_num_batched_tokens,
                num_blocks=machine.num_blocks,
                block_size=machine.block_size,
                max_model_len=min(MAX_MODEL_LEN, machine.capacity_tokens),
                has_prefix_cache=False,
            )
        )
        self._scheduler = self._engine.scheduler
        self._requests: dict[int, FleetRequest] = {}
        self._ended = 0.0
        self._ttft, self._itl = Latencies(), Latencies()

    @property
    def num_in_flight(self) -> int:
        """Return how many requests it has, waiting or running."""
        return len(self._requests)

    def add(self, request: FleetRequest, now: float) -> None:
        """Take a request; the engine has been advanced to `now`."""
        self._now = max(self._now, now)
        message = EngineRequest(
            request_id=str(request.index),
            handle=request.index,
            prompt_token_ids=_TOKENS[: request.num_prompt],
            sampling=SamplingParams(max_tokens=request.num_output, temperature=0.0, ignore_eos=True),
            arrival_time=request.arrival,
            itl_slo_seconds=self._machine.itl_slo_seconds,
        )
        if self._scheduler.add(message, request.index) is not None:
            request.is_failed = True
            return
        self._requests[request.index] = request

    def advance(self, until: float) -> None:
        """Carry out every step that begins before `until`."""
        while self._now < until:
            output = self._scheduler.schedule(self._now) if self._requests else None
            if output is not None:
                self._step(output)
            elif self._requests:
                self._now = min(until, self._now + _IDLE_TICK_SECONDS)
            else:
                self._now = until

    def take_unstarted(self) -> list[FleetRequest]:
        """Give back the requests of which no client has seen a token."""
        return self._take([r for r in self._requests.values() if not r.has_started])

    def take_all(self) -> list[FleetRequest]:
        """Give back everything: the process has died."""
        return self._take(list(self._requests.values()))

    def figures(self, now: float) -> EngineFigures:
        """Return what it reports of itself."""
        stats = self._scheduler.stats()
        return EngineFigures(
            sampled_at=now,
            process_started=self._started,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            held_blocks=stats.num_total_blocks - stats.num_free_blocks,
            total_blocks=stats.num_total_blocks,
            block_size_tokens=self._machine.block_size,
            max_num_seqs=self._machine.max_num_seqs,
            waiting_prompt_tokens=stats.waiting_prompt_tokens,
            prefill_tokens_total=float(stats.prompt_tokens),
            cached_tokens_total=float(stats.prefix_hits_tokens),
            output_tokens_total=float(stats.generation_tokens),
            requests_total=self._ended,
            time_to_first_token=self._ttft.histogram(),
            inter_token=self._itl.histogram(),
            step_times=self._step_times(),
        )

    def _step_times(self) -> StepTimes | None:
        """Return what the engine has learned of its own steps; nothing before it has."""
        model = self._engine.learning.model
        if not model.is_fitted:
            return None
        first, token, context, work, logits = model.fitted().coefficients
        return StepTimes(
            fixed_seconds=first,
            token_seconds=token,
            context_token_seconds=context,
            attention_pair_seconds=work,
            row_seconds=logits,
        )

    def _take(self, requests: list[FleetRequest]) -> list[FleetRequest]:
        for request in requests:
            self._scheduler.abort(str(request.index))
            del self._requests[request.index]
        return requests

    def _step(self, output: SchedulerOutput) -> None:
        """Let a step take its time and hand out its tokens."""
        seconds = self._machine.step_time.seconds(features_of(output))
        self._now += seconds
        self._engine.observe(output, seconds)
        plain, special = told(self._scheduler.update(make_result(output), self._now))
        self._itl.add(seconds, len(plain))
        for index, what in special:
            request = self._requests[index]
            if what.num_tokens and not request.has_started:
                request.first_token = self._now
                self._ttft.add(self._now - request.arrival)
            if what.is_last:
                request.last_token = self._now
                request.is_failed = what.error is not None
                self._ended += 1
                del self._requests[index]
