"""A real `tidemill-engine serve`, both processes, on free ports, for tests of the whole engine."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

READY = "api.serve: ready after"
_LISTENING = re.compile(r"listening on (http://\S+)")
_CORE_PID = re.compile(r"started the core, pid (\d+)")
_RANK_PID = re.compile(r"started rank \d+, pid (\d+)")


@dataclass(kw_only=True)
class EngineProcess:
    """One running engine and what it has logged."""

    process: asyncio.subprocess.Process
    session: ClientSession
    lines: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    core_pid: int = 0
    rank_pids: list[int] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _reader: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Return the OpenAI API's address."""
        return self.urls[0]

    @property
    def admin_url(self) -> str:
        """Return the admin API's address."""
        return self.urls[1]

    async def read_log(self) -> None:
        """Note every line until the process closes its end."""
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self.lines.append(line)
            if match := _LISTENING.search(line):
                self.urls.append(match[1])
            if match := _CORE_PID.search(line):
                self.core_pid = int(match[1])
            if match := _RANK_PID.search(line):
                self.rank_pids.append(int(match[1]))
            self._news.set()
        self._news.set()

    async def until_logged(self, text: str) -> None:
        """Wait for a line, or fail with all lines if the process ends before."""
        while not any(text in line for line in self.lines):
            assert not self.process.stderr.at_eof(), "\n".join(self.lines)  # type: ignore[union-attr]
            self._news.clear()
            await self._news.wait()

    async def exit_code(self) -> int:
        """Wait for the process to end, and its log too."""
        code = await self.process.wait()
        if self._reader is not None:
            await self._reader
        return code

    async def get(self, path: str, *, is_admin: bool = False) -> tuple[int, Any]:
        """Get JSON."""
        async with self.session.get((self.admin_url if is_admin else self.url) + path) as response:
            return response.status, await response.json()

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        """Send JSON to the API and return status and JSON."""
        async with self.session.post(self.url + path, json=body) as response:
            return response.status, await response.json()

    async def stats(self) -> dict[str, Any]:
        """Return the core's latest figures."""
        _, body = await self.get("/debug/kv", is_admin=True)
        return dict(body["stats"])

    async def until_stats(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the core's figures fulfil a condition and return them."""
        while True:
            stats = await self.stats()
            if condition(stats):
                return stats
            await asyncio.sleep(0.02)

    async def until_idle(self) -> dict[str, Any]:
        """Wait until the core holds no request and return its figures then."""
        return await self.until_stats(lambda stats: stats["num_running"] == stats["num_waiting"] == 0)


def is_running(pid: int) -> bool:
    """Say whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody announces; the test's own timeout bounds it."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.02)


@asynccontextmanager
async def running_engine(
    uri: str,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    waits_for: str = READY,
) -> AsyncIterator[EngineProcess]:
    """Start an engine, wait for a line of its log, and kill what is left of it at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tidemill_engine", "serve", uri, "--port", "0", "--admin-port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    async with ClientSession() as session:
        engine = EngineProcess(process=process, session=session)
        engine._reader = asyncio.create_task(engine.read_log())
        try:
            await engine.until_logged(waits_for)
            yield engine
        finally:
            if process.returncode is None:
                process.kill()
            await engine.exit_code()
