"""Measures what a request costs at the gateway beside a bare proxy, and what open streams cost in memory.

Knows how to start the servers, send at a rate and read a process's memory. Windows of the three paths take
turns, so that a noisy machine is equally noisy to all. A path's figure is the median over its windows, so
that it stands while fewer than half of them are disturbed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

BODY = {"model": "chat", "messages": [{"role": "user", "content": "What is the tide? " * 45}]}
PATH = "/v1/chat/completions"
PATHS = ("direct", "bare", "bare_like_gateway", "gateway")
"""`bare_like_gateway` is the bare proxy on the gateway's own event loop."""
WARM_UP_SECONDS = 1.0
SERVER = "tidemill_bench.gateway.servers"


@dataclass(frozen=True, kw_only=True)
class CostPlan:
    """How much is measured."""

    rate: float = 500.0
    window_seconds: float = 2.0
    num_rounds: int = 9
    num_streams: int = 2000
    stream_seconds: float = 15.0


@dataclass(kw_only=True)
class Server:
    """One started process."""

    process: asyncio.subprocess.Process
    address: str

    def rss_mib(self) -> float:
        """Read how much memory the process has now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@asynccontextmanager
async def running(role: str, *arguments: str) -> AsyncIterator[Server]:
    """Start a server, and kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        SERVER,
        role,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("a server without an output")
        line = (await process.stdout.readline()).decode().split()
        if len(line) != 2:
            raise RuntimeError(f"the server {role} did not start")
        yield Server(process=process, address=f"127.0.0.1:{line[1]}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure_cost(plan: CostPlan) -> dict[str, object]:
    """Send at a rate to engine, bare proxy and gateway by turns; give their latencies and what they add."""
    async with (
        running("engine") as engine,
        running("bare", "--target", engine.address) as bare,
        running("bare", "--like-gateway", "--target", engine.address) as like_gateway,
        running("gateway", "--target", engine.address) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        urls = {
            name: f"http://{server.address}{PATH}"
            for name, server in zip(PATHS, (engine, bare, like_gateway, gateway), strict=True)
        }
        windows: dict[str, list[list[float]]] = {name: [] for name in PATHS}
        for url in urls.values():
            await _window(session, url, plan.rate, WARM_UP_SECONDS)
        for _ in range(plan.num_rounds):
            for name, url in urls.items():
                windows[name].append(await _window(session, url, plan.rate, plan.window_seconds))
    return compare(plan.rate, windows)


async def measure_memory(plan: CostPlan) -> dict[str, object]:
    """Hold streams open through the gateway, then let readers stall, and watch the gateway's memory."""
    async with (
        running("engine") as engine,
        running("gateway", "--target", engine.address) as gateway,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        ) as session,
    ):
        url = f"http://{gateway.address}{PATH}"
        idle = gateway.rss_mib()
        readers = [asyncio.create_task(_read_stream(session, url)) for _ in range(plan.num_streams)]
        opened = await _until_open(readers)
        at_open = gateway.rss_mib()
        await asyncio.sleep(plan.stream_seconds)
        later = gateway.rss_mib()
        num_alive = sum(not reader.done() for reader in readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        before_stall = gateway.rss_mib()
        stalled = [await _stall(session, url) for _ in range(50)]
        await asyncio.sleep(5)
        after_stall = gateway.rss_mib()
        for response in stalled:
            response.close()
    return {
        "streams": plan.num_streams,
        "streams_alive_at_end": num_alive,
        "open_after_seconds": round(opened, 2),
        "idle_mib": round(idle, 1),
        "at_open_mib": round(at_open, 1),
        "after_seconds_mib": round(later, 1),
        "growth_ratio": round(later / at_open, 4),
        "kib_per_stream": round((at_open - idle) * 1024 / plan.num_streams, 1),
        "stalled_readers": len(stalled),
        "stalled_growth_mib": round(after_stall - before_stall, 1),
    }


async def _window(session: aiohttp.ClientSession, url: str, rate: float, seconds: float) -> list[float]:
    """Send at even distances, whatever the answers take; give each request's seconds from its due time."""
    start = time.perf_counter()
    tasks = []
    for number in range(round(rate * seconds)):
        due = start + number / rate
        delay = due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(_ask(session, url)))
    return list(await asyncio.gather(*tasks))


async def _ask(session: aiohttp.ClientSession, url: str) -> float:
    start = time.perf_counter()
    async with session.post(url, json=BODY) as response:
        await response.read()
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {(await response.text())[:200]}")
    return time.perf_counter() - start


def compare(rate: float, windows: dict[str, list[list[float]]]) -> dict[str, object]:
    """Give the figures of all paths' windows of seconds; what one adds is its p50 less that of `direct`."""
    p50, p99 = (
        {
            name: float(np.median([np.percentile(window, percent) for window in found])) * 1000
            for name, found in windows.items()
        }
        for percent in (50, 99)
    )
    added = {name: p50[name] - p50["direct"] for name in PATHS[1:]}
    return {
        "requests_per_second": rate,
        "requests": sum(len(window) for window in windows["gateway"]),
        "p50_ms": {name: round(value, 3) for name, value in p50.items()},
        "p99_ms": {name: round(value, 3) for name, value in p99.items()},
        "added_p50_ms": {name: round(value, 3) for name, value in added.items()},
        "added_ratio": round(added["gateway"] / added["bare"], 3),
        "added_ratio_like_gateway": round(added["gateway"] / added["bare_like_gateway"], 3),
    }


async def _read_stream(session: aiohttp.ClientSession, url: str) -> None:
    task = asyncio.current_task()
    async with session.post(url, json={**BODY, "stream": True, "pause": 1.0}) as response:
        async for _ in response.content.iter_any():
            if task is not None:
                task.set_name("open")


async def _until_open(readers: list[asyncio.Task[None]]) -> float:
    start = time.perf_counter()
    while not all(reader.get_name() == "open" or reader.done() for reader in readers):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return time.perf_counter() - start


async def _stall(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
    """Begin a stream without end and read nothing of it."""
    return await session.post(url, json={**BODY, "stream": True, "flood": True}, read_bufsize=1024)
