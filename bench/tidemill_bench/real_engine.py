"""The shapes on the real CPU runner, in this process, and transformers' static `generate` as an outsider.

On one core and in CPU time, so that other programs on the machine don't count. All requests are there at
once. Lengths of the extreme shape are divided by eight. Every engine gets the same prompts in the same
order and must return exactly the lengths asked for; what it computes beyond them counts for nothing. The
dynamic scheduler and transformers get the first 64 of the requests: they take long, and padded batches go at
the same speed from the first one on. Beside each of ours stands what the simulator says of the same requests.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tidemill_bench.engine_seam import EngineSetup, to_message
from tidemill_bench.policies import (
    CONTINUOUS,
    DYNAMIC,
    EXPECTED_THROUGHPUT,
    REQUESTS_PER_SLOT,
    STATIC,
    STATIC_BATCH,
    WIDE,
)
from tidemill_bench.runs import Job, run_job
from tidemill_bench.scheduler_cost import one_core
from tidemill_bench.shapes import SHAPES, LengthShape, SimRequest, draw_requests
from tidemill_bench.step_time import StepTime
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, OrderConfig, SchedulerConfig
from tidemill_engine.core.process import make_engine
from tidemill_engine.model_uri import BUILTIN_MODELS, find_model_path
from tidemill_engine.runner.load import load_runner

if TYPE_CHECKING:
    from tidemill_engine.runner.base import ModelRunner

logger = logging.getLogger(__name__)

MODEL = "smollm2-135m"
TRANSFORMERS = "transformers generate"
EXTREME_DIVISOR = 8
_MAX_MODEL_LEN = 2048
ENGINES = tuple(
    setup.but(num_blocks=STATIC_BATCH * _MAX_MODEL_LEN // setup.block_size, max_model_len=_MAX_MODEL_LEN)
    for setup in (WIDE, CONTINUOUS, DYNAMIC, STATIC)
)
"""Ours, all in the same memory: 256 slots or 32, and the two baselines."""
EXPECTED_OVER_TRANSFORMERS = {"alike": 2.0, "medium": 4.0, "extreme": 8.0}
HEADER = (
    f"{'shape':<10} {'engine':<27} {'requests':>8} {'tokens':>7} {'CPU s':>8} {'wall s':>8} "
    f"{'tok/CPU s':>10} {'simulated':>10}"
)


@dataclass(frozen=True, kw_only=True)
class RaceOptions:
    """What to run: which shapes, how many requests, and how many of them the slow ones get."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    num_requests: int = REQUESTS_PER_SLOT * STATIC_BATCH
    num_outside: int = 2 * STATIC_BATCH
    """Of transformers, and of `dynamic`, which is `static` where all requests are there at once."""
    step_time: StepTime
    seed: int = 1

    def count_for(self, setup: EngineSetup) -> int:
        """Return how many requests one of our engines gets."""
        return self.num_outside if setup.scheduler == "dynamic" else self.num_requests


@dataclass(frozen=True, kw_only=True)
class Run:
    """One engine on one shape; seconds are CPU seconds on one core."""

    shape: str
    engine: str
    num_requests: int
    num_tokens: int
    seconds: float
    wall_seconds: float
    simulated: float | None = None
    """Output tokens a second by the simulator, for ours."""

    @property
    def tokens_per_second(self) -> float:
        """Return useful output tokens per CPU second."""
        return self.num_tokens / self.seconds

    def as_line(self) -> str:
        """Lay the run out under `HEADER`."""
        simulated = "" if self.simulated is None else f"{self.simulated:10.1f}"
        return (
            f"{self.shape:<10} {self.engine:<27} {self.num_requests:8d} {self.num_tokens:7d} "
            f"{self.seconds:8.1f} {self.wall_seconds:8.1f} {self.tokens_per_second:10.1f} {simulated}"
        ).rstrip()

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "shape": self.shape,
            "engine": self.engine,
            "requests": self.num_requests,
            "output_tokens_per_second": round(self.tokens_per_second, 2),
            "simulated_tokens_per_second": self.simulated and round(self.simulated, 2),
            "cpu_seconds": round(self.seconds, 2),
            "wall_seconds": round(self.wall_seconds, 2),
        }


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """All runs."""

    runs: tuple[Run, ...]

    def ratios(self, over: str, ours: str = WIDE.name) -> dict[str, float]:
        """Return a continuous engine's throughput over another one's, by shape."""
        speeds = {(run.shape, run.engine): run.tokens_per_second for run in self.runs}
        return {
            shape: round(speeds[shape, ours] / speeds[shape, over], 3)
            for shape in dict.fromkeys(run.shape for run in self.runs)
            if (shape, over) in speeds and (shape, ours) in speeds
        }

    def unmet(self) -> list[str]:
        """Return a sentence for each expectation that was run and not met."""
        return [
            f"over {over}, {shape}: {ratio:.2f}, expected {expected[shape]:g}"
            for over, expected in (
                (STATIC.name, EXPECTED_THROUGHPUT),
                (TRANSFORMERS, EXPECTED_OVER_TRANSFORMERS),
            )
            for shape, ratio in self.ratios(over).items()
            if ratio < expected[shape]
        ]

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "engine_throughput_over_static": self.ratios(STATIC.name),
            "engine_throughput_over_transformers": self.ratios(TRANSFORMERS),
            "engine_throughput_over_static_at_32_slots": self.ratios(STATIC.name, CONTINUOUS.name),
            "engine_throughput_over_transformers_at_32_slots": self.ratios(TRANSFORMERS, CONTINUOUS.name),
            "unmet": self.unmet(),
            "runs": [run.as_json() for run in self.runs],
        }


def race(options: RaceOptions) -> RaceResult:
    """Run every shape on every engine, and print each run as it ends."""
    runs: list[Run] = []
    print(HEADER, flush=True)
    with one_core():
        runner = load_runner(_config(ENGINES[0]), lambda _read, _total: None)
        for shape in options.shapes:
            requests = draw_requests(_lengths(shape), options.num_requests, rate=None, seed=options.seed)
            for setup in ENGINES:
                part = requests[: options.count_for(setup)]
                job = Job(setup=setup, step_time=options.step_time, requests=tuple(part))
                simulated = run_job(job).output_tokens_per_second
                runs.append(replace(run_engine(shape, setup, part, runner), simulated=simulated))
                print(runs[-1].as_line(), flush=True)
            runs.append(run_transformers(shape, requests[: options.num_outside]))
            print(runs[-1].as_line(), flush=True)
    return RaceResult(runs=tuple(runs))


def run_engine(shape: str, setup: EngineSetup, requests: Sequence[SimRequest], runner: ModelRunner) -> Run:
    """Serve all requests on our own engine core, without processes around it."""
    core = make_engine(_config(setup), runner)
    for index, request in enumerate(requests):
        refused = core.add(to_message(request, index))
        if refused is not None:
            raise RuntimeError(f"request {index} was refused: {refused.error}")
    counts = [0] * len(requests)
    began, began_wall = time.process_time(), time.perf_counter()
    while core.scheduler.has_work():
        output = core.schedule()
        if output is None:
            time.sleep(core.scheduler.wait_seconds(time.monotonic()))
            continue
        outputs = core.run(output).outputs
        for handle in outputs.handles.tolist():
            counts[handle] += 1
        for special in outputs.special:
            counts[int(special.request_id)] += len(special.token_ids)
    seconds, wall = time.process_time() - began, time.perf_counter() - began_wall
    if counts != [request.num_output_tokens for request in requests]:
        raise RuntimeError(f"{setup.name} returned other lengths than were asked for")
    return Run(
        shape=shape,
        engine=setup.name,
        num_requests=len(requests),
        num_tokens=sum(counts),
        seconds=seconds,
        wall_seconds=wall,
    )


def _config(setup: EngineSetup) -> CoreConfig:
    """Return the configuration of one of our engines."""
    return CoreConfig(
        model=ModelConfig(uri=f"builtin://{MODEL}", max_model_len=setup.max_model_len),
        cache=CacheConfig(num_blocks=setup.num_blocks, block_size=setup.block_size),
        scheduler=SchedulerConfig(
            kind=setup.scheduler,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            max_chunk_tokens=setup.max_chunk_tokens,
            order=OrderConfig(policy=setup.policy),
        ),
    )


def run_transformers(shape: str, requests: Sequence[SimRequest]) -> Run:
    """Serve the requests by transformers' `generate`: padded batches of 32, each to its longest output."""
    model = _transformers_model()
    began, began_wall = time.process_time(), time.perf_counter()
    for start in range(0, len(requests), STATIC_BATCH):
        _generate(model, requests, range(start, min(start + STATIC_BATCH, len(requests))))
    return Run(
        shape=shape,
        engine=TRANSFORMERS,
        num_requests=len(requests),
        num_tokens=sum(request.num_output_tokens for request in requests),
        seconds=time.process_time() - began,
        wall_seconds=time.perf_counter() - began_wall,
    )


def _generate(model: Any, requests: Sequence[SimRequest], members: range) -> None:
    """Generate one batch, padded on the left as decoder-only models need it."""
    import torch  # noqa: PLC0415 - heavy, and only wanted here

    prompts = [requests[index].prompt_token_ids(index) for index in members]
    longest = max(len(prompt) for prompt in prompts)
    num_outputs = max(requests[index].num_output_tokens for index in members)
    input_ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        generated = model.generate(
            input_ids=input_ids,
            attention_mask=mask,
            max_new_tokens=num_outputs,
            min_new_tokens=num_outputs,
            do_sample=False,
            pad_token_id=0,
        )
    if generated.shape[1] != longest + num_outputs:
        raise RuntimeError("transformers returned other lengths than were asked for")


@cache
def _transformers_model() -> Any:
    import torch  # noqa: PLC0415 - heavy, and only wanted here
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    path = find_model_path(BUILTIN_MODELS[MODEL])
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    return model.to(torch.bfloat16).eval()  # plain matrices, as ours; twice as fast here as float32


def _lengths(shape: str) -> LengthShape:
    lengths = SHAPES[shape]
    return lengths.divided_by(EXTREME_DIVISOR) if shape == "extreme" else lengths
