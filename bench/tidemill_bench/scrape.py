"""What it costs the operator to read a whole fleet: synthetic engines on loopback, the real scraper.

The engines are another process, each with an address of its own (127.x.y.z), so that connections are kept per
engine as in a cluster; only the reader's CPU time is counted. Knows nothing of Kubernetes.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import web

from tidemill_engine.metrics import SECONDS
from tidemill_operator.fleet.figures import engine_from_load
from tidemill_operator.fleet.scraper import EngineTarget, Scraper

MAX_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True)
class ScrapeOptions:
    """How many engines are read how often, for how long."""

    endpoints: int = 400
    interval_seconds: float = 5.0
    rounds: int = 6


@dataclass(frozen=True, kw_only=True)
class ScrapeCost:
    """What reading came to."""

    cpu_share: float
    """CPU seconds of the reading process per second, all rounds together."""
    num_answers: int
    num_missing: int
    answer_bytes: int
    p50_ms: float
    p99_ms: float
    parse_share: float
    """How much of that went into turning answers into figures, estimated by doing it alone."""

    def as_json(self, options: ScrapeOptions) -> dict[str, object]:
        """Give the figures as the command prints them."""
        return {
            "endpoints": options.endpoints,
            "interval_seconds": options.interval_seconds,
            "rounds": options.rounds,
            "cpu_share": round(self.cpu_share, 4),
            "max_cpu_share": round(MAX_SHARE, 4),
            "answers": self.num_answers,
            "missing": self.num_missing,
            "answer_bytes": self.answer_bytes,
            "p50_ms": round(self.p50_ms, 2),
            "p99_ms": round(self.p99_ms, 2),
            "parse_share": round(self.parse_share, 4),
        }


def measure(options: ScrapeOptions) -> ScrapeCost:
    """Start the engines, read them round by round, and give what it cost this process."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    engines = context.Process(target=_serve_engines, args=(theirs,), daemon=True)
    engines.start()
    try:
        port = int(ours.recv())
        return asyncio.run(_read_rounds(options, port))
    finally:
        engines.terminate()
        engines.join()


def answer_of(number: int) -> bytes:
    """Write what a busy engine says at `/load`."""
    draw = random.Random(number)  # noqa: S311 - numbers to look at
    counts = [draw.randrange(100_000) for _ in SECONDS]
    histogram = [[bound, sum(counts[: n + 1])] for n, bound in enumerate(SECONDS)] + [[None, sum(counts)]]
    document: dict[str, Any] = {
        "started": 1.0,
        "ready": True,
        "draining": False,
        "running": draw.randrange(64),
        "waiting": draw.randrange(9),
        "waiting_prompt_tokens": draw.randrange(9000),
        "free_blocks": draw.randrange(4096),
        "total_blocks": 4096,
        "block_size": 32,
        "max_num_seqs": 64,
        "requests_total": draw.randrange(10**6),
        "computed_tokens_total": 10**9,
        "generation_tokens_total": draw.randrange(10**8),
        "prefix_cache_hits_total": draw.randrange(10**8),
        "time_to_first_token": histogram,
        "inter_token_latency": histogram,
        "step_seconds": dict.fromkeys(("fixed", "token", "context_token", "attention_pair", "row"), 1e-5),
    }
    return json.dumps(document).encode()


async def _read_rounds(options: ScrapeOptions, port: int) -> ScrapeCost:
    scraper = Scraper(ports=(port, port, port))
    targets = [
        EngineTarget(
            uid=f"uid-{n}", name=f"engine-{n}", ip=f"127.0.{1 + n // 250}.{1 + n % 250}", tokens=("t" * 43,)
        )
        for n in range(options.endpoints)
    ]
    durations: list[float] = []
    missing: list[str] = []

    async def read(target: EngineTarget, delay: float) -> None:
        await asyncio.sleep(delay)
        began = time.perf_counter()
        answer = await scraper.engine(target)
        durations.append(time.perf_counter() - began)
        if answer.figures is None:
            missing.append(answer.missing_reason)

    async def read_all() -> None:
        delays = [random.uniform(0, options.interval_seconds) for _ in targets]  # noqa: S311 - spreads the load
        await asyncio.gather(*(read(target, delay) for target, delay in zip(targets, delays, strict=True)))

    await read_all()
    durations.clear()
    missing.clear()
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(options.rounds):
        await read_all()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    await scraper.close()
    ordered = sorted(durations)
    return ScrapeCost(
        cpu_share=cpu_seconds / seconds,
        num_answers=len(durations),
        num_missing=len(missing),
        answer_bytes=len(answer_of(0)),
        p50_ms=_quantile(ordered, 0.5) * 1000,
        p99_ms=_quantile(ordered, 0.99) * 1000,
        parse_share=_parse_seconds(options.endpoints) * options.rounds / seconds,
    )


def _parse_seconds(num_answers: int) -> float:
    """Measure turning so many answers into figures by itself."""
    answers = [answer_of(number) for number in range(num_answers)]
    began = time.process_time()
    for answer in answers:
        engine_from_load(answer, 0.0)
    return time.process_time() - began


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _serve_engines(connection: Connection) -> None:
    """Answer for every address on one port until the parent ends this process."""

    async def load(request: web.Request) -> web.Response:
        sockname = request.transport.get_extra_info("sockname") if request.transport else ("",)
        return web.Response(body=answers[hash(sockname[0]) % len(answers)], content_type="application/json")

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/load", load)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "0.0.0.0", 0)  # noqa: S104 - every address of loopback, on a free port
        await site.start()
        connection.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    answers = [answer_of(number) for number in range(64)]
    asyncio.run(serve())
