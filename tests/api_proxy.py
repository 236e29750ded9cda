"""A proxy in front of an API server that does to its clients what bad days do.

It runs in a thread of its own, speaks plain HTTP to its one client on loopback and HTTPS to the API server,
passes the client's own credentials on, and counts. Which request meets which fault is decided by a seeded
generator or by the number of a write, never by time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NOT_PASSED_ON = frozenset({"host", "transfer-encoding", "connection", "content-length"})


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How likely each fault is for one request, from 0 to 1; a watch is cut after so many events.

    What is spared is not counted either.
    """

    delayed: float = 0.0
    delay_seconds: float = 0.05
    refused: float = 0.0
    refusals: tuple[int, ...] = (409, 429, 500, 503)
    dropped: float = 0.0
    answer_lost: float = 0.0
    watch_expired: float = 0.0
    watch_cut_after: int | None = None
    spared: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Script:
    """What the test has asked for; changed from the test's thread, read in the proxy's."""

    faults: Faults = field(default_factory=Faults)
    at_write: int | None = None
    is_before: bool = True
    action: Callable[[], object] | None = None


class ApiProxy:
    """One proxy; `url` is what its client is pointed at."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, seed: int = 0) -> None:
        self._server = server
        self._tls = tls
        self._random = random.Random(seed)
        self._script = _Script()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._handling: set[asyncio.Task[object]] = set()
        self._watching: set[asyncio.Task[object]] = set()
        self.url = ""
        self.counts: Counter[str] = Counter()
        self.num_writes = 0
        self._num_refused: Counter[bool] = Counter()

    def start(self) -> None:
        """Listen on a free port."""
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=30)

    def stop(self) -> None:
        """Stop listening and cut what is open."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._loop.close()

    def misbehave(self, faults: Faults) -> None:
        """Do this to every request from now on; `Faults()` is peace.

        Watches under way are cut: they would go on for minutes as they have begun, and meet nothing of it.
        """
        self._script.faults = faults
        self._loop.call_soon_threadsafe(self._cut_watches)

    def at_write(self, number: int, action: Callable[[], object], *, is_before: bool) -> None:
        """Do something once, right before or after the so-manieth write from now reaches the API server."""
        self._script.action = action
        self._script.is_before = is_before
        self._script.at_write = self.num_writes + number

    async def _start(self) -> str:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or True, limit=0), auto_decompress=False
        )
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        for task in self._handling:
            task.cancel()
        if self._session is not None:
            await self._session.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        if request.query.get("watch") == "true":
            self._watching.add(task)
        try:
            return await self._serve(request)
        finally:
            self._handling.discard(task)
            self._watching.discard(task)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") == "true"
        faults = self._script.faults
        is_spared = any(word in request.path for word in faults.spared)
        if is_spared:
            faults = Faults()
        if self._happens(faults.delayed):
            await asyncio.sleep(faults.delay_seconds * self._random.random())
        if not is_spared:
            self.counts["WATCH" if is_watch else request.method] += 1
        if self._happens(faults.dropped):
            return self._drop(request)
        if is_watch and self._happens(faults.watch_expired):
            return self._refuse(410)
        if self._happens(faults.refused):
            # Nobody is told of a conflict who only reads.
            statuses = [s for s in faults.refusals if s != 409 or request.method in WRITES]
            kind = request.method in WRITES
            self._num_refused[kind] += 1
            return self._refuse(statuses[self._num_refused[kind] % len(statuses) - 1])
        is_last = self._count_write(request.method)
        if is_last and self._script.is_before:
            self._act()
        answer = await self._pass_on(request, faults, is_watch=is_watch)
        if is_last and not self._script.is_before:
            self._act()
        if request.method in WRITES and self._happens(faults.answer_lost):
            return self._drop(request)
        return answer

    def _cut_watches(self) -> None:
        for task in self._watching:
            task.cancel()

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _count_write(self, method: str) -> bool:
        """Count a write; tell whether it is the one that the test waits for."""
        if method not in WRITES:
            return False
        self.num_writes += 1
        if self._script.at_write is None or self.num_writes < self._script.at_write:
            return False
        self._script.at_write = None
        return True

    def _act(self) -> None:
        if self._script.action is not None:
            self._script.action()
            self._script.action = None

    def _refuse(self, status: int) -> web.Response:
        self.counts[f"refused {status}"] += 1
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": "Test",
                "message": "the proxy refuses, as the test wants"}  # fmt: skip
        headers = {"Retry-After": "1"} if status == 429 else {}
        return web.json_response(body, status=status, headers=headers)

    def _drop(self, request: web.Request) -> web.Response:
        self.counts["dropped"] += 1
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _pass_on(self, request: web.Request, faults: Faults, *, is_watch: bool) -> web.StreamResponse:
        assert self._session is not None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_PASSED_ON}
        patience = aiohttp.ClientTimeout(total=None)
        url = URL(f"{self._server}{request.raw_path}", encoded=True)
        body = await request.read()
        async with self._session.request(
            request.method, url, headers=headers, data=body or None, timeout=patience
        ) as upstream:
            kept = {k: v for k, v in upstream.headers.items() if k.lower() not in _NOT_PASSED_ON}
            if not is_watch:
                return web.Response(status=upstream.status, headers=kept, body=await upstream.read())
            answer = web.StreamResponse(status=upstream.status, headers=kept)
            await answer.prepare(request)
            num_events = 0
            async for line in upstream.content:
                await answer.write(line)
                num_events += 1
                if faults.watch_cut_after is not None and num_events >= faults.watch_cut_after:
                    self._drop(request)
                    break
            return answer


def tls_of(kubeconfig_text: str) -> tuple[str, ssl.SSLContext]:
    """Give the API server's address and the trust in it from `kubectl config view --raw -o json`."""
    cluster = json.loads(kubeconfig_text)["clusters"][0]["cluster"]
    data = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return str(cluster["server"]), ssl.create_default_context(cadata=data)
