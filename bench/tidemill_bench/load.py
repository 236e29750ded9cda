"""A closed-loop load client: each of `concurrency` workers sends its next request when its last has ended.

Knows the OpenAI completions API with streaming; nothing of any engine's inside. One connection a worker.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import aiohttp

from .report import Record
from .workload import PlannedRequest


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the requests go; `base_url` ends in /v1."""

    base_url: str
    model: str
    api_key: str | None = None
    timeout_seconds: float = 600.0


async def run_load(endpoint: Endpoint, requests: Sequence[PlannedRequest], concurrency: int) -> list[Record]:
    """Send all requests, `concurrency` at a time, and return their records in the order of `requests`."""
    queue = iter(requests)
    records: list[Record] = []
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    timeout = aiohttp.ClientTimeout(total=endpoint.timeout_seconds)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        workers = [_worker(session, endpoint, queue, records) for _ in range(min(concurrency, len(requests)))]
        await asyncio.gather(*workers)
    return sorted(records, key=lambda record: record.index)


async def _worker(
    session: aiohttp.ClientSession, endpoint: Endpoint, queue: Iterator[PlannedRequest], records: list[Record]
) -> None:
    for request in queue:
        records.append(await send(session, endpoint, request))


async def send(session: aiohttp.ClientSession, endpoint: Endpoint, request: PlannedRequest) -> Record:
    """Send one streamed completion and time its chunks; a failure is a record with `error`."""
    start = time.perf_counter()
    chunks: list[float] = []
    usage: dict[str, int] = {}
    error: str | None = None
    body = {
        "model": endpoint.model,
        "prompt": list(request.prompt_token_ids),
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with session.post(f"{endpoint.base_url}/completions", json=body) as response:
            if response.status != 200:
                raise LoadError(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for event in _events(response):
                if event.get("choices"):
                    chunks.append(time.perf_counter())
                reported = event.get("usage")
                usage = reported if isinstance(reported, dict) else usage
        if usage.get("completion_tokens") != request.output_tokens:
            raise LoadError(
                f"asked for {request.output_tokens} tokens, usage says {usage.get('completion_tokens')}"
            )
    except (aiohttp.ClientError, TimeoutError, ValueError, LoadError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Record(
        index=request.index,
        start_seconds=start,
        end_seconds=time.perf_counter(),
        chunk_seconds=tuple(chunks),
        prompt_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        error=error,
    )


class LoadError(Exception):
    """The server answered, but not with what was asked for."""


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, object]]:
    """Yield the JSON events of a server-sent stream; a stream that stops before [DONE] is a LoadError."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise LoadError(f"error event: {event['error']}")
        yield event
    raise LoadError("the stream ended before [DONE]")
