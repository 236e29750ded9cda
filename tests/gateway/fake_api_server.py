"""A small API server for tests: pages, watches from a version, 410, bookmarks, cut and silent connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from tidemill_gateway.api import KubernetesApi
from tidemill_gateway.objects import Kind
from tidemill_gateway.process import listen
from tidemill_operator import names

Raw = dict[str, Any]


class FakeApiServer:
    """Objects by kind and UID, and every change since the last compaction."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest_version = 0
        self.objects: dict[str, dict[str, Raw]] = {kind.value: {} for kind in Kind}
        self.changes: list[tuple[int, str, Raw]] = []
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.delivered: dict[str, int] = {}
        self.page_size: int | None = None
        self.refuse_with: tuple[int, str] | None = None
        self.is_silent = False
        self._changed = asyncio.Condition()
        self._finishing: set[asyncio.Task[Any]] = set()
        self._open: dict[str, set[asyncio.Task[Any]]] = {kind.value: set() for kind in Kind}

    async def put(self, kind: Kind, raw: Raw) -> None:
        """Create or change an object."""
        known = self.objects[kind.value]
        event = "MODIFIED" if raw["metadata"]["uid"] in known else "ADDED"
        await self._change(kind, event, raw)
        known[raw["metadata"]["uid"]] = raw

    async def delete(self, kind: Kind, uid: str) -> None:
        """Delete an object."""
        await self._change(kind, "DELETED", self.objects[kind.value].pop(uid))

    async def bookmark(self, kind: Kind) -> None:
        """Tell watches how far they have come."""
        await self._change(kind, "BOOKMARK", {"kind": "any", "metadata": {}})

    async def send(self, kind: Kind, event: str, raw: Raw) -> None:
        """Send an event as it is."""
        await self._change(kind, event, raw)

    def compact(self) -> None:
        """Forget all changes so far: who asks for older ones gets 410."""
        self.oldest_version = self.version
        self.changes.clear()

    def cut(self, kind: Kind) -> None:
        """Cut all watches of a kind."""
        for task in self._open[kind.value]:
            task.cancel()

    async def finish(self, kind: Kind) -> None:
        """End all watches of a kind as a server's timeout does, after what was to be sent."""
        async with self._changed:
            self._finishing.update(self._open[kind.value])
            self._changed.notify_all()

    def num_open(self, kind: Kind) -> int:
        """Count the open watches of a kind."""
        return len(self._open[kind.value])

    async def _change(self, kind: Kind, event: str, raw: Raw) -> None:
        async with self._changed:
            self.version += 1
            raw["metadata"]["resourceVersion"] = str(self.version)
            self.changes.append(
                (self.version, kind.value, {"type": event, "object": json.loads(json.dumps(raw))})
            )
            self._changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a list or a watch."""
        query = dict(request.query)
        plural = request.path.rsplit("/", 1)[-1]
        if plural == "secrets":
            plural = Kind.KEYS.value
        elif query.get("labelSelector") == names.DEFAULT_GATEWAY_SELECTOR:
            plural = Kind.GATEWAYS.value
        if self.refuse_with is not None:
            code, message = self.refuse_with
            return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
        if query.get("watch") == "true":
            self.watches.append({"plural": plural, "path": request.path, **query})
            return await self._watch(request, plural, int(query["resourceVersion"]))
        self.lists.append(
            {"plural": plural, "path": request.path, "accept": request.headers["Accept"], **query}
        )
        return self._list(plural, int(query.get("continue", "0")))

    def _list(self, plural: str, start: int) -> web.Response:
        everything = list(self.objects[plural].values())
        size = self.page_size or len(everything) or 1
        metadata = {"resourceVersion": str(self.version)}
        if start + size < len(everything):
            metadata["continue"] = str(start + size)
        return web.json_response({"metadata": metadata, "items": everything[start : start + size]})

    async def _watch(self, request: web.Request, plural: str, version: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._open[plural].add(task)
        try:
            if version < self.oldest_version:
                gone = {
                    "kind": "Status",
                    "code": 410,
                    "reason": "Expired",
                    "message": "too old resource version",
                }
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                return response
            while True:
                version = await self._send_changes(response, plural, version)
                if task in self._finishing:
                    return response
                await self._wait_beyond(version, task)
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self._open[plural].discard(task)
            self._finishing.discard(task)

    async def _wait_beyond(self, version: int, task: asyncio.Task[Any]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.version > version or task in self._finishing)

    async def _send_changes(self, response: web.StreamResponse, plural: str, version: int) -> int:
        for number, kind, event in list(self.changes):
            if number > version and kind == plural and not self.is_silent:
                line = json.dumps(event).encode() + b"\n"
                await response.write(line[:20])  # events arrive in pieces
                await response.write(line[20:])
                self.delivered[plural] = number
        return self.version


@asynccontextmanager
async def run_fake_api_server() -> AsyncIterator[tuple[FakeApiServer, KubernetesApi]]:
    """Run the server, and give it with a client for it."""
    server = FakeApiServer()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    port, _ = await listen(runner, "127.0.0.1", 0)
    configuration = Configuration(host=f"http://127.0.0.1:{port}")
    api = KubernetesApi(ApiClient(configuration))
    try:
        yield server, api
    finally:
        await api.close()
        with suppress(asyncio.CancelledError):
            await runner.cleanup()
