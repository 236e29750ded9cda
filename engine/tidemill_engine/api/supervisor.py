"""The core process as its parent sees it: started with a socket and a page of shared memory, watched, ended.

Knows processes and descriptors; does not know what is said over the socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from tidemill_engine.config import CoreConfig
from tidemill_engine.heartbeat import HeartbeatReader, create_heartbeat_fd
from tidemill_engine.ipc import socket_pair
from tidemill_engine.ipc_async import AsyncFrameConnection
from tidemill_engine.messages import CoreFrame
from tidemill_engine.processes import describe_exit

logger = logging.getLogger(__name__)

EXIT_SECONDS = 5.0


class CoreProcess:
    """One running core."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        connection: AsyncFrameConnection[CoreFrame],
        heartbeat: HeartbeatReader,
    ) -> None:
        self._process = process
        self.connection = connection
        self.heartbeat = heartbeat

    @classmethod
    async def start(cls, config: CoreConfig) -> CoreProcess:
        """Start the core in a session of its own: a Ctrl-C must not end it under its streams."""
        ours, theirs = socket_pair()
        heartbeat_fd = create_heartbeat_fd()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tidemill_engine.core"),
                *("--fd", str(theirs.fileno())),
                *("--heartbeat-fd", str(heartbeat_fd)),
                *("--config", config.to_json()),
                pass_fds=[theirs.fileno(), heartbeat_fd],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            heartbeat = HeartbeatReader(heartbeat_fd)
        finally:
            theirs.close()
            os.close(heartbeat_fd)
        logger.info("started the core, pid %d", process.pid)
        return cls(process, await AsyncFrameConnection.open(ours, CoreFrame), heartbeat)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    async def end(self, seconds: float = EXIT_SECONDS) -> str:
        """Wait for the core to exit, then kill it; return in words how it ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            logger.warning("the core did not exit within %.1f s: killing it", seconds)
            self._process.kill()
            await self._process.wait()
        return describe_exit(self._process.returncode or 0)
