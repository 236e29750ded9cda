"""The other ranks as rank 0 sees them: started with a socket each, told what to do, watched, ended.

Knows processes and sockets; no tensors. A rank that ends unasked is reported once, from a thread of its own:
the main thread may hang in an exchange with the dead.
"""

from __future__ import annotations

import logging
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tidemill_engine.config import CoreConfig
from tidemill_engine.errors import PeerGone
from tidemill_engine.ipc import FrameConnection, socket_pair
from tidemill_engine.parallel.orders import RankFailed, RankOrder
from tidemill_engine.processes import describe_exit

logger = logging.getLogger(__name__)

EXIT_SECONDS = 2.0
_LAST_WORDS_SECONDS = 0.5

OnFailure = Callable[[RankFailed], None]


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """One other rank."""

    number: int
    process: subprocess.Popen[bytes]
    socket: socket.socket
    connection: FrameConnection[RankFailed]

    def last_words(self) -> RankFailed:
        """Say why it ended: in its own words, or by its exit status."""
        try:
            for failed in self.connection.receive(0.0):
                return failed
        except PeerGone:
            logger.debug("rank %d has said nothing", self.number)
        try:
            how = describe_exit(self.process.wait(_LAST_WORDS_SECONDS))
        except subprocess.TimeoutExpired:
            how = "it closed its socket"
        return RankFailed(reason="RankDied", message=f"rank {self.number} has ended unexpectedly: {how}")


class Ranks:
    """All ranks but this one, which is 0."""

    def __init__(self, ranks: list[_Rank], listener: socket.socket, on_failure: OnFailure) -> None:
        self._ranks = ranks
        self._listener = listener
        self._on_failure = on_failure
        self._is_closing = False
        self._watcher = threading.Thread(target=self._watch, name="rank-watch", daemon=True)
        self._watcher.start()

    @classmethod
    def start(cls, config: CoreConfig, on_failure: OnFailure) -> Ranks:
        """Start the other ranks; `on_failure` is called from another thread when one ends unasked."""
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        numbers = range(1, config.device.tensor_parallel_size)
        return cls([_start(config, number, port) for number in numbers], listener, on_failure)

    @property
    def port(self) -> int:
        """Return where the ranks meet, on 127.0.0.1."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def listener_fd(self) -> int:
        """Return the descriptor of the socket that listens there."""
        return self._listener.fileno()

    def send(self, order: RankOrder) -> None:
        """Tell every rank the same; a dead one raises `PeerGone`."""
        for rank in self._ranks:
            rank.connection.send(order)

    def has_failed_within(self, seconds: float) -> bool:
        """Say whether a rank's end has been, or is within that time, reported."""
        self._watcher.join(seconds)
        return not self._watcher.is_alive()

    def close(self) -> None:
        """End all ranks: they see the end of their file; those that are there after a while are killed."""
        self._is_closing = True
        for rank in self._ranks:
            rank.socket.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        deadline = time.monotonic() + EXIT_SECONDS
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.warning("rank %d did not end within %.0f s: killing it", rank.number, EXIT_SECONDS)
                rank.process.kill()
        self._watcher.join()

    def _watch(self) -> None:
        """Wait for the first rank that says something or ends: either is its end."""
        poll = select.poll()
        by_fd = {rank.socket.fileno(): rank for rank in self._ranks}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        (fd, _), *_ = poll.poll()
        if self._is_closing:
            return
        failed = by_fd[fd].last_words()
        logger.error("%s", failed.message)
        self._on_failure(failed)


def _start(config: CoreConfig, number: int, port: int) -> _Rank:
    """Start one rank."""
    ours, theirs = socket_pair()
    with theirs:
        process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "tidemill_engine.parallel"),
                *("--fd", str(theirs.fileno())),
                *("--rank", str(number)),
                *("--port", str(port)),
                *("--config", config.to_json()),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    logger.info("started rank %d, pid %d", number, process.pid)
    return _Rank(number=number, process=process, socket=ours, connection=FrameConnection(ours, RankFailed))
