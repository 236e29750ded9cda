"""Sends requests to an OpenAI server and notes when bytes come back: closed loop or at given times.

Knows HTTP and the clock; nothing of any engine's inside, and nothing of what the bytes say (`events`).
In an open loop a request is sent when it is due, whoever is late: no limit holds it back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import aiohttp

from tidemill_bench.load.events import read_answer
from tidemill_bench.load.records import ErrorKind, Failure, Record
from tidemill_bench.load.workload import PlannedRequest

Api = Literal["completions", "chat"]
_READ_BYTES = 1 << 20
_WORDS = (
    "tide",
    "mill",
    "wheel",
    "water",
    "stone",
    "grain",
    "river",
    "gate",
    "flour",
    "sluice",
    "moon",
    "sea",
)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the requests go and how they are written; `base_url` ends in /v1."""

    base_url: str
    model: str
    api: Api = "completions"
    api_key: str | None = field(default=None, repr=False)
    ignores_eos: bool = True
    """The server knows `ignore_eos`, so outputs have exactly the length that was asked for."""
    timeout_seconds: float = 600.0
    resends: int = 0
    """So often a request whose connection breaks before anything came back is sent once more, as OpenAI's own
    client does twice: a server may close a kept connection just when the next request is on its way."""

    @property
    def path(self) -> str:
        """Return the whole URL of the API that is used."""
        return f"{self.base_url}/" + ("completions" if self.api == "completions" else "chat/completions")

    def body(self, request: PlannedRequest) -> dict[str, Any]:
        """Return the JSON of a request; a chat gets words, about one for each token."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignores_eos:
            body["ignore_eos"] = True
        if self.api == "completions":
            return body | {"prompt": list(request.prompt_token_ids)}
        text = " ".join(_WORDS[token % len(_WORDS)] for token in request.prompt_token_ids)
        return body | {"messages": [{"role": "user", "content": text}]}


@dataclass(kw_only=True)
class _Exchange:
    """What one request sent and read, before anyone has looked at it; seconds of the monotonic clock."""

    request: PlannedRequest
    due_seconds: float
    sent_seconds: float
    end_seconds: float = 0.0
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    failure: Failure | None = None


async def run_load(
    endpoint: Endpoint, requests: Sequence[PlannedRequest], concurrency: int | None
) -> list[Record]:
    """Send all requests and return their records in the order of `requests`.

    With a concurrency, so many workers each send their next request when their last has ended; without one,
    every request is sent when it is due.
    """
    async with _session(endpoint) as session:
        started = time.perf_counter()
        if concurrency is None:
            sends = [_send_when_due(session, endpoint, request, started) for request in requests]
            exchanges = list(await asyncio.gather(*sends))
        else:
            exchanges = []
            queue = iter(requests)
            workers = min(concurrency, len(requests))
            await asyncio.gather(*(_worker(session, endpoint, queue, exchanges) for _ in range(workers)))
    records = [_to_record(exchange, endpoint, started) for exchange in exchanges]
    return sorted(records, key=lambda record: record.index)


async def knows_ignore_eos(endpoint: Endpoint) -> bool:
    """Ask the server with one tiny request whether it takes `ignore_eos`; a refusal with 4xx means no."""
    tiny = PlannedRequest(index=0, prompt_token_ids=(1000, 1001), output_tokens=2)
    async with _session(endpoint) as session:
        for ignores_eos in (True, False):
            asked = replace(endpoint, ignores_eos=ignores_eos)
            async with session.post(asked.path, json=asked.body(tiny)) as response:
                text = await response.text()
                if response.status < 400:
                    return ignores_eos
        raise LoadError(f"the server refuses a plain request: HTTP {response.status}: {text[:300]}")


class LoadError(Exception):
    """The server can't be used at all."""


def _session(endpoint: Endpoint) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    return aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=endpoint.timeout_seconds),
        connector=aiohttp.TCPConnector(limit=0),
        read_bufsize=_READ_BYTES,
    )


async def _worker(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    queue: Iterator[PlannedRequest],
    exchanges: list[_Exchange],
) -> None:
    for request in queue:
        now = time.perf_counter()
        exchanges.append(await _send(session, endpoint, _exchange(request, now, now)))


async def _send_when_due(
    session: aiohttp.ClientSession, endpoint: Endpoint, request: PlannedRequest, started: float
) -> _Exchange:
    due = started + (request.due_seconds or 0.0)
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return await _send(session, endpoint, _exchange(request, due, time.perf_counter()))


def _exchange(request: PlannedRequest, due: float, sent: float) -> _Exchange:
    return _Exchange(request=request, due_seconds=due, sent_seconds=sent)


async def _send(session: aiohttp.ClientSession, endpoint: Endpoint, exchange: _Exchange) -> _Exchange:
    """Send one request and note what is read and when; a failure is part of the exchange."""
    for _ in range(1 + endpoint.resends):
        exchange.failure = None
        await _try(session, endpoint, exchange)
        if exchange.failure is None or exchange.failure.kind != "connection":
            break
    exchange.end_seconds = time.perf_counter()
    return exchange


async def _try(session: aiohttp.ClientSession, endpoint: Endpoint, exchange: _Exchange) -> None:
    """Send a request once."""
    clock, reads = time.perf_counter, exchange.reads
    try:
        async with session.post(endpoint.path, json=endpoint.body(exchange.request)) as response:
            if response.status != 200:
                kind: ErrorKind = "refused" if response.status in {429, 503} else "http"
                exchange.failure = Failure(
                    kind=kind, message=f"HTTP {response.status}: {(await response.text())[:300]}"
                )
            else:
                async for data in response.content.iter_any():
                    reads.append((clock(), data))
    except TimeoutError:
        exchange.failure = Failure(kind="timeout", message=f"no end after {endpoint.timeout_seconds:g} s")
    except aiohttp.ClientError as error:
        kind = "stream" if reads else "connection"
        exchange.failure = Failure(kind=kind, message=f"{type(error).__name__}: {error}")


def _to_record(exchange: _Exchange, endpoint: Endpoint, started: float) -> Record:
    """Read what came back, and check it against what was asked for."""
    answer = read_answer(exchange.reads)
    wanted = exchange.request.output_tokens
    got = answer.output_tokens if answer.output_tokens is not None else len(answer.chunk_seconds)
    failure = exchange.failure
    if failure is None and answer.error is not None:
        failure = Failure(kind="event", message=answer.error)
    elif failure is None and not answer.is_done:
        failure = Failure(kind="stream", message="the stream ended before [DONE]")
    elif failure is None and endpoint.ignores_eos and got != wanted:
        failure = Failure(kind="length", message=f"asked for {wanted} tokens, usage says {got}")
    return Record(
        index=exchange.request.index,
        due_seconds=exchange.due_seconds - started,
        sent_seconds=exchange.sent_seconds - started,
        end_seconds=exchange.end_seconds - started,
        chunk_seconds=tuple(seconds - started for seconds in answer.chunk_seconds),
        prompt_tokens=answer.prompt_tokens or 0,
        output_tokens=got,
        failure=failure,
    )
