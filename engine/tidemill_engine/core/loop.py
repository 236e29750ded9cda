"""The core's loop: messages in, a step, messages out, a heartbeat before each.

Knows the socket, the heartbeat and when to report figures. Does not know how a step is chosen or computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill_engine.core.stats import StatsCollector
from tidemill_engine.heartbeat import IDLE_BEAT_SECONDS
from tidemill_engine.messages import (
    AbortRequest,
    ApiFrame,
    CoreFrame,
    CoreMessage,
    EngineRequest,
    RequestOutput,
    Shutdown,
)
from tidemill_engine.scheduler.crowd import straggler_seconds

if TYPE_CHECKING:
    from tidemill_engine.core.engine import EngineCore
    from tidemill_engine.heartbeat import HeartbeatWriter
    from tidemill_engine.ipc import FrameConnection

logger = logging.getLogger(__name__)

_STALLED_WAIT_SECONDS = 0.05


class CoreLoop:
    """Runs until it is told to shut down or the API process is gone (`PeerGone`)."""

    def __init__(
        self,
        engine: EngineCore,
        connection: FrameConnection[ApiFrame],
        heartbeat: HeartbeatWriter,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._connection = connection
        self._heartbeat = heartbeat
        self._clock = clock
        self._stats = StatsCollector(engine.scheduler, engine.step_model)
        self._outbox: list[CoreMessage] = []
        self._is_idle = False
        self._is_check_due = False
        self._pause_seconds = 0.0

    def run(self) -> None:
        """Serve until `Shutdown`."""
        while self._take_messages():
            self._step()
            self._flush()

    def _take_messages(self) -> bool:
        """Take in what the API process has sent, waiting while there is nothing to do; False at the end."""
        while True:
            self._heartbeat.beat(self._clock())
            has_work = self._engine.has_work()
            if not has_work:
                self._turn_idle()
            timeout = self._pause_seconds if has_work else IDLE_BEAT_SECONDS
            self._pause_seconds = 0.0
            frames = self._connection.receive(timeout)
            if not has_work and not frames:
                self._check_books()
            if not self._take_all(frames):
                return False
            if has_work:
                return True
            if self._engine.has_work() or self._outbox:
                return self._take_stragglers()

    def _take_stragglers(self) -> bool:
        """Take in the rest of a crowd that comes while nobody is served, as long as its first step may wait.

        False at the end.
        """
        began = self._clock()
        while True:
            waited = self._clock() - began
            self._heartbeat.beat(began + waited)
            seconds = straggler_seconds(self._engine.crowd_seconds(), waited)
            frames = self._connection.receive(seconds) if seconds > 0.0 else []
            if not frames:
                return True
            if not self._take_all(frames):
                return False

    def _take_all(self, frames: list[ApiFrame]) -> bool:
        """Start and end what the messages ask for; False if they ask for the end."""
        for frame in frames:
            for message in frame.messages:
                if isinstance(message, Shutdown):
                    logger.info("told to shut down")
                    return False
                self._take(message)
        return True

    def _take(self, message: EngineRequest | AbortRequest) -> None:
        """Start or end one request."""
        output: RequestOutput | None
        if isinstance(message, EngineRequest):
            output = self._engine.add(message)
        else:
            output = self._engine.abort(message.request_id)
        if output is not None:
            self._outbox.append(output)

    def _step(self) -> None:
        """Launch the next step and take in the oldest one's tokens, if there is one of either."""
        output = self._engine.schedule()
        if output is None and not self._engine.num_in_flight:
            self._pause()
            return
        self._is_idle = False
        num_tokens = 0 if output is None else output.num_tokens
        self._heartbeat.beat(self._clock(), self._stats.predicted_seconds(num_tokens))
        report = self._engine.advance(output)
        if report is None:
            return
        self._stats.add_step(report)
        self._outbox += report.outputs.messages()

    def _pause(self) -> None:
        """Wait for messages before the next try, as long as the scheduler means to, if it does."""
        scheduler = self._engine.scheduler
        if not scheduler.has_work():
            return
        self._pause_seconds = min(scheduler.wait_seconds(self._clock()), IDLE_BEAT_SECONDS)
        if self._pause_seconds <= 0.0:
            logger.error("requests wait but no step can be scheduled: %s", scheduler.stats())
            self._pause_seconds = _STALLED_WAIT_SECONDS

    def _flush(self) -> None:
        """Send the outputs of the step in one frame, with the figures when they are due."""
        if self._stats.is_due(self._clock()):
            self._outbox.append(self._stats.take(self._clock()))
        if self._outbox:
            self._connection.send(CoreFrame(messages=self._outbox))
            self._outbox = []

    def _turn_idle(self) -> None:
        """Report at once when the last request has ended."""
        if self._is_idle:
            return
        self._is_idle = self._is_check_due = True
        self._outbox.append(self._stats.take(self._clock()))
        self._flush()

    def _check_books(self) -> None:
        """Check the books once in every idle time, after a whole beat of it.

        It takes a tenth of a second where the pool has 100,000 blocks, for which whoever asks again at once
        would wait.
        """
        if self._is_check_due:
            self._is_check_due = False
            self._engine.scheduler.check_integrity()
