"""Real engines on the fake runner, as processes that last as long as a block.

Knows the engine's command line and by which words in its log it says that it is ready.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LISTENING = re.compile(r"listening on http://(\S+?)/?$")
READY = "api.serve: ready after"


@asynccontextmanager
async def running_engine(uri: str, *flags: str) -> AsyncIterator[str]:
    """Start an engine that serves `uri` as `chat`, and kill it at the end; give its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tidemill_engine", "serve", uri, "--port", "0", "--admin-port", "0"),
        *("--served-model-name", "chat", *flags),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    drain: asyncio.Task[None] | None = None
    try:
        address = await _until_ready(process)
        drain = asyncio.create_task(_drain(process))
        yield address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if drain is not None:
            await drain


async def _until_ready(process: asyncio.subprocess.Process) -> str:
    address, lines = "", []
    assert process.stderr is not None  # noqa: S101 - it was asked for as a pipe
    async for raw in process.stderr:
        line = raw.decode(errors="replace").strip()
        lines.append(line)
        if not address and (match := LISTENING.search(line)):
            address = match[1]
        if READY in line:
            return address
    raise RuntimeError("an engine did not start:\n" + "\n".join(lines[-10:]))


async def _drain(process: asyncio.subprocess.Process) -> None:
    if process.stderr is not None:
        async for _ in process.stderr:
            pass
