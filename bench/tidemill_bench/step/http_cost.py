"""What HTTP and the second process cost: the same requests to the core alone and over HTTP, in turn.

Both run the same engine with the same limits; over HTTP the load client takes its share of the machine, too.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemill_bench.load.client import Endpoint, run_load
from tidemill_bench.load.report import summarize
from tidemill_bench.load.workload import PlannedRequest, plan_requests
from tidemill_bench.race.server import Server, ServerCommand
from tidemill_bench.smollm2 import VOCAB_SIZE
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.core.engine import EngineCore
from tidemill_engine.core.process import make_engine
from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.runner.load import load_runner

CONCURRENCY = 64
_ROUNDS = 3
_PORT = 18090


@dataclass(frozen=True, kw_only=True)
class HttpCost:
    """Throughputs in output tokens a second, medians over rounds; CPU seconds per token by process."""

    concurrency: int
    engine_tokens_per_second: float
    http_tokens_per_second: float
    ratios: tuple[float, ...]
    core_seconds_per_token: float
    api_seconds_per_token: float
    client_seconds_per_token: float

    @property
    def cost(self) -> float:
        """Return the share of throughput that HTTP takes, by the median round."""
        return 1.0 - statistics.median(self.ratios)


def measure_http_cost(uri: str, num_requests: int) -> HttpCost:
    """Serve `uniform` in turn in this process and over HTTP, a few rounds."""
    return asyncio.run(_measure(uri, num_requests))


async def _measure(uri: str, num_requests: int) -> HttpCost:
    engine = _engine(uri)
    argv = (sys.executable, "-m", "tidemill_engine", "serve", uri, "--port", str(_PORT))
    command = ServerCommand(argv=(*argv, "--admin-port", str(_PORT + 1)), ready_path="/health/ready")
    with TemporaryDirectory() as folder:
        server = Server(command, _PORT, Path(folder) / "server.log")
        try:
            await server.wait_ready()
            return await _rounds(engine, server, num_requests)
        finally:
            server.end()


async def _rounds(engine: EngineCore, server: Server, num_requests: int) -> HttpCost:
    """Take turns; the server stands still while the core in this process runs."""
    alone: list[float] = []
    served: list[float] = []
    endpoint = Endpoint(base_url=f"{server.root_url}/v1", model="smollm2-135m")
    await run_load(endpoint, plan_requests("uniform", 8, VOCAB_SIZE, 999), 8)
    before = server.cpu_seconds()
    client_seconds = 0.0
    for number in range(_ROUNDS):
        requests = plan_requests("uniform", num_requests, VOCAB_SIZE, number)
        server.pause()
        alone.append(_run_in_process(engine, requests))
        server.resume()
        client_before = _own_cpu_seconds()
        report = summarize(await run_load(endpoint, requests, CONCURRENCY), "uniform", "")
        client_seconds += _own_cpu_seconds() - client_before
        if report.num_errors:
            raise RuntimeError(f"{report.num_errors} requests failed, first: {report.first_error}")
        served.append(report.output_tokens_per_second)
    api, core = (later - sooner for later, sooner in zip(server.cpu_seconds(), before, strict=True))
    num_tokens = sum(r.output_tokens for r in requests) * _ROUNDS
    return HttpCost(
        concurrency=CONCURRENCY,
        engine_tokens_per_second=statistics.median(alone),
        http_tokens_per_second=statistics.median(served),
        ratios=tuple(over / core_alone for over, core_alone in zip(served, alone, strict=True)),
        core_seconds_per_token=core / num_tokens,
        api_seconds_per_token=api / num_tokens,
        client_seconds_per_token=client_seconds / num_tokens,
    )


def _engine(uri: str) -> EngineCore:
    config = CoreConfig(
        model=ModelConfig(uri=uri), cache=CacheConfig(), scheduler=SchedulerConfig(max_num_seqs=256)
    )
    return make_engine(config, load_runner(config, lambda _read, _total: None))


def _run_in_process(engine: EngineCore, requests: Sequence[PlannedRequest]) -> float:
    """Serve the requests in a closed loop without processes around it; return output tokens a second."""
    waiting = list(enumerate(requests))[::-1]
    left = {index: request.output_tokens for index, request in enumerate(requests)}
    began = time.perf_counter()
    num_in_flight = 0
    while left:
        while waiting and num_in_flight < CONCURRENCY:
            index, request = waiting.pop()
            _add(engine, index, request)
            num_in_flight += 1
        output = engine.schedule()
        if output is None:
            raise RuntimeError("nothing can be scheduled")
        outputs = engine.run(output).outputs
        for index in outputs.handles.tolist():
            left[index] -= 1
        for special in outputs.special:
            left[int(special.request_id)] -= len(special.token_ids)
            if special.finish_reason is not None:
                num_in_flight -= 1
                if left.pop(int(special.request_id)):
                    raise RuntimeError("another number of tokens came than was asked for")
    return sum(request.output_tokens for request in requests) / (time.perf_counter() - began)


def _add(engine: EngineCore, index: int, request: PlannedRequest) -> None:
    refused = engine.add(
        EngineRequest(
            request_id=str(index),
            handle=index,
            prompt_token_ids=list(request.prompt_token_ids),
            sampling=SamplingParams(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True),
            arrival_time=time.monotonic(),
        )
    )
    if refused is not None:
        raise RuntimeError(f"the engine refused a request: {refused.error}")


def _own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
