"""A deadline that the core promises to beat, in eight bytes of memory that both processes see.

The core writes it before each step and while idle; the API process reads it to answer liveness probes.
Neither asks the other anything, so a core that hangs can't hide it. Times are `time.monotonic()`, which
processes of one machine share; they come in as arguments, so nothing here looks at a clock.
"""

from __future__ import annotations

import mmap
import os

_SIZE_BYTES = 8
MIN_STEP_SECONDS = 20.0
MAX_STEP_SECONDS = 300.0
STEP_FACTOR = 10.0
IDLE_BEAT_SECONDS = 1.0


def create_heartbeat_fd() -> int:
    """Make the shared memory and return its file descriptor, to be inherited by the core."""
    fd = os.memfd_create("tidemill-heartbeat")
    os.ftruncate(fd, _SIZE_BYTES)
    return fd


def step_deadline(now: float, predicted_seconds: float) -> float:
    """Return the time by which a step that starts now must have ended."""
    return now + min(max(STEP_FACTOR * predicted_seconds, MIN_STEP_SECONDS), MAX_STEP_SECONDS)


class HeartbeatWriter:
    """The core's side."""

    def __init__(self, fd: int) -> None:
        self._cell = memoryview(mmap.mmap(fd, _SIZE_BYTES)).cast("d")

    def beat(self, now: float, predicted_seconds: float = 0.0) -> None:
        """Promise another beat within ten times the predicted time, clamped to 20 s .. 300 s from now."""
        self._cell[0] = step_deadline(now, predicted_seconds)


class HeartbeatReader:
    """The API process's side."""

    def __init__(self, fd: int) -> None:
        self._cell = memoryview(mmap.mmap(fd, _SIZE_BYTES, prot=mmap.PROT_READ)).cast("d")

    @property
    def deadline(self) -> float | None:
        """Return the promised time, or None while the core has not beaten yet (it is loading)."""
        value: float = self._cell[0]
        return value or None

    def is_overdue(self, now: float) -> bool:
        """Say whether the core has missed its promise."""
        deadline = self.deadline
        return deadline is not None and now > deadline
