"""A server in a process group of its own: started, waited for, paused while others run, ended.

Knows processes, signals and when an OpenAI server is ready. A paused group takes no time from anybody: peers
are started once and stand still until it is their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

_POLL_SECONDS = 0.5
_END_SECONDS = 20.0
_LAST_LINES = 6


class SetupError(Exception):
    """A contender can't take part; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """How to start a server: its command line, what its environment has beside ours, when to give up."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ready_path: str = "/v1/models"
    ready_seconds: float = 300.0


class Server:
    """One running server."""

    def __init__(self, command: ServerCommand, port: int, log_path: Path) -> None:
        """Start it; its output goes to a file."""
        self._command = command
        self._log_path = log_path
        self.root_url = f"http://127.0.0.1:{port}"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command.argv,
                env=os.environ | command.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def wait_ready(self) -> None:
        """Return when it answers; raise SetupError when it has ended or the time is up."""
        deadline = time.monotonic() + self._command.ready_seconds
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise SetupError(f"ended with {self._process.returncode}: {self._last_lines()}")
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(self.root_url + self._command.ready_path) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(_POLL_SECONDS)
        raise SetupError(f"not ready after {self._command.ready_seconds:g} s: {self._last_lines()}")

    def pause(self) -> None:
        """Stop the whole group, so that it takes no CPU time."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the group go on."""
        self._signal(signal.SIGCONT)

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU time so far of the first process, and of all its descendants."""
        ticks = os.sysconf("SC_CLK_TCK")
        own, others = 0.0, 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just ended
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._process.pid:  # its process group
                    seconds = (int(fields[11]) + int(fields[12])) / ticks
                    if stat.parent.name == str(self._process.pid):
                        own = seconds
                    else:
                        others += seconds
        return own, others

    def end(self) -> None:
        """End the group, by force where it does not listen."""
        self.resume()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_lines(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " | ".join(lines[-_LAST_LINES:])[-800:]
