"""A real core process, driven over its socket as the API process would, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from tidemill_engine.config import CoreConfig
from tidemill_engine.heartbeat import HeartbeatReader, create_heartbeat_fd
from tidemill_engine.ipc import FrameConnection, socket_pair
from tidemill_engine.messages import (
    AbortRequest,
    ApiFrame,
    CoreFrame,
    CoreMessage,
    CoreReady,
    CoreStats,
    EngineRequest,
    RequestOutput,
    Shutdown,
    StepTokens,
)

LIMIT_SECONDS = 120.0


class CoreProcess:
    """A real core process, seen from the API process's side."""

    def __init__(self, config: CoreConfig, environment: dict[str, str] | None = None) -> None:
        mine, theirs = socket_pair()
        self.heartbeat_fd = create_heartbeat_fd()
        self.heartbeat = HeartbeatReader(self.heartbeat_fd)
        arguments = ["--fd", str(theirs.fileno()), "--heartbeat-fd", str(self.heartbeat_fd)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill_engine.core", *arguments, "--config", config.to_json()],
            pass_fds=[theirs.fileno(), self.heartbeat_fd],
            env={**os.environ, **(environment or {})},
        )
        theirs.close()
        self.socket: socket.socket = mine
        self.connection = FrameConnection(mine, CoreFrame)
        self.messages: list[CoreMessage] = []
        self.ids: dict[int, str] = {}

    def send(self, *messages: EngineRequest | AbortRequest | Shutdown) -> None:
        self.ids |= {m.handle: m.request_id for m in messages if isinstance(m, EngineRequest)}
        self.connection.send(ApiFrame(messages=list(messages)))

    def wait_for(self, found: Callable[[CoreMessage], bool]) -> CoreMessage:
        """Return the first message of which this holds, old or new."""
        deadline = time.monotonic() + LIMIT_SECONDS
        seen = 0
        while True:
            for message in self.messages[seen:]:
                if found(message):
                    return message
            seen = len(self.messages)
            assert time.monotonic() < deadline, f"not among {self.messages[-20:]}"
            for frame in self.connection.receive(1.0):
                for message in frame.messages:
                    self.messages += self.spelled_out(message)

    def spelled_out(self, message: CoreMessage) -> list[CoreMessage]:
        """Return columns of tokens as outputs of their own."""
        if not isinstance(message, StepTokens):
            return [message]
        return [RequestOutput(request_id=self.ids[h], token_ids=[token]) for h, token in message.pairs()]

    def wait_ready(self) -> CoreReady:
        ready = self.wait_for(lambda message: isinstance(message, CoreReady))
        assert isinstance(ready, CoreReady)
        return ready

    def wait_finish(self, request_id: str) -> RequestOutput:
        output = self.wait_for(
            lambda m: (
                isinstance(m, RequestOutput) and m.request_id == request_id and m.finish_reason is not None
            )
        )
        assert isinstance(output, RequestOutput)
        return output

    def wait_idle(self) -> CoreStats:
        """Return the newest figures once they show nobody running."""
        self.messages = [m for m in self.messages if not isinstance(m, CoreStats) or not m.num_running]
        stats = self.wait_for(
            lambda m: isinstance(m, CoreStats) and m.num_steps > 0 and m.num_running == m.num_waiting == 0
        )
        assert isinstance(stats, CoreStats)
        return stats

    def tokens(self, request_id: str) -> list[int]:
        outputs = [m for m in self.messages if isinstance(m, RequestOutput) and m.request_id == request_id]
        return [token for output in outputs for token in output.token_ids]

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()
        os.close(self.heartbeat_fd)
