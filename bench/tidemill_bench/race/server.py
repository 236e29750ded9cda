"""A server and its processes: started, waited for, paused while others run, ended.

Knows processes, signals and when an OpenAI server is ready. What is paused takes no time from anybody: peers
are started once and stand still until it is their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

_POLL_SECONDS = 0.5
_END_SECONDS = 20.0
_LAST_LINES = 6
_PARENT, _USER_TIME, _BORN = 1, 11, 19
"""Places in what Linux says of a process."""


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
        """Stop all its processes, so that they take no CPU time."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU time so far of the first process, and of all its descendants."""
        times = {pid: _cpu_seconds(pid) for pid in family(self._process.pid)}
        own = times.pop(self._process.pid, 0.0)
        return own, sum(times.values())

    def end(self) -> None:
        """End all its processes, by force where they do not listen."""
        self.resume()
        born = {pid: _fields(pid)[_BORN] for pid in family(self._process.pid) if _fields(pid)}
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for pid in _alive(born):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _END_SECONDS
        while _alive(born) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS / 10)

    def _signal(self, number: signal.Signals) -> None:
        for pid in family(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _last_lines(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " | ".join(lines[-_LAST_LINES:])[-800:]


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, whatever group or session they are in."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if fields:
            children[int(fields[_PARENT])].append(int(folder.name))
    found = [pid]
    for member in found:
        found += children[member]
    return found


def _alive(born: dict[int, str]) -> list[int]:
    """Return those of the processes, given with their time of birth, that still run."""
    found = []
    for pid, ticks in born.items():
        fields = _fields(pid)
        if fields and fields[_BORN] == ticks and fields[0] != "Z":
            found.append(pid)
    return found


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of one process; 0 where it has ended."""
    times = _fields(pid)[_USER_TIME : _USER_TIME + 2]
    return sum(int(ticks) for ticks in times) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """Return what Linux says of a process after its name (proc_pid_stat); nothing where it has ended."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return []
