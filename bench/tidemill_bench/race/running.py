"""A contender that is up: it takes requests and gives a result, stands still between its turns, and ends.

Two kinds: a server behind HTTP, driven by the load client, and a script that reads runs from its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tidemill_bench.load.client import Endpoint, run_load
from tidemill_bench.load.report import summarize
from tidemill_bench.load.workload import PlannedRequest
from tidemill_bench.race.contender import Result, result_of
from tidemill_bench.race.models import MODEL
from tidemill_bench.race.server import Server, ServerCommand, SetupError

_SCRIPT_READY_SECONDS = 300.0
_RUN_SECONDS = 3600.0
_RESENDS = 2
_LONGEST_LINE_BYTES = 1 << 28


class Running(Protocol):
    """Something that can run a workload."""

    async def run(self, requests: Sequence[PlannedRequest], concurrency: int) -> Result:
        """Serve the requests, so many at a time."""

    def pause(self) -> None:
        """Stand still, without taking CPU time."""

    def resume(self) -> None:
        """Go on."""

    async def end(self) -> None:
        """End whatever was started."""


class HttpRunning:
    """A server, driven by the load client."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @classmethod
    async def start(cls, command: ServerCommand, port: int, log_path: Path) -> HttpRunning:
        """Start a server and wait until it answers."""
        server = Server(command, port, log_path)
        try:
            await server.wait_ready()
        except BaseException:
            server.end()
            raise
        return cls(server)

    async def run(self, requests: Sequence[PlannedRequest], concurrency: int) -> Result:
        """Send the requests in a closed loop."""
        endpoint = Endpoint(
            base_url=f"{self._server.root_url}/v1",
            model=MODEL,
            timeout_seconds=_RUN_SECONDS,
            resends=_RESENDS,
        )
        records = await run_load(endpoint, requests, concurrency)
        return result_of(summarize(records, "", ""))

    def pause(self) -> None:
        """Stop the server's processes."""
        self._server.pause()

    def resume(self) -> None:
        """Let them go on."""
        self._server.resume()

    async def end(self) -> None:
        """End the server."""
        await asyncio.to_thread(self._server.end)


class ScriptRunning:
    """A script that reads a run as a line of JSON and writes what it came to as another."""

    def __init__(self, process: Process, log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    @classmethod
    async def start(cls, command: ServerCommand, log_path: Path) -> ScriptRunning:
        """Start the script and wait until it says that it is ready."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                env=os.environ | command.environment,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
                limit=_LONGEST_LINE_BYTES,
            )
        script = cls(process, log_path)
        try:
            await script._answer(_SCRIPT_READY_SECONDS)
        except BaseException:
            await script.end()
            raise
        return script

    async def run(self, requests: Sequence[PlannedRequest], concurrency: int) -> Result:
        """Give the script all requests at once; it keeps to the concurrency itself."""
        outputs = [request.output_tokens for request in requests]
        prompts = [list(request.prompt_token_ids) for request in requests]
        asked = {"prompts": prompts, "outputs": outputs, "concurrency": concurrency}
        if self._process.stdin is None:
            raise RuntimeError("the script was started without an input")
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        await self._process.stdin.drain()
        told = await self._answer(_RUN_SECONDS)
        return Result(
            output_tokens_per_second=sum(outputs) / told["seconds"],
            prompt_tokens_per_second=sum(map(len, prompts)) / told["seconds"],
            ttft_p99_seconds=_p99(told["ttft"]),
            itl_p99_seconds=_p99(told["gaps"]),
        )

    def pause(self) -> None:
        """Stop the script."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    async def end(self) -> None:
        """End the script."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def _answer(self, seconds: float) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("the script was started without an output")
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise SetupError(f"no answer after {seconds:g} s") from None
        if not line:
            said = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise SetupError(f"ended: {(said or ['it said nothing'])[-1][:300]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _p99(values: Sequence[float]) -> float | None:
    return float(np.percentile(values, 99)) if values else None
