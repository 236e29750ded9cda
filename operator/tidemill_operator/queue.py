"""The work queue: every key has one task, so that no service is ever worked on twice at the same time.

Knows when to run: at once when a key is added, again when it was added during its run, after a growing pause
when the run failed, and from time to time anyway. Refuses to know what a run does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from tidemill_operator import metrics
from tidemill_operator.clock import Clock
from tidemill_operator.errors import OperatorError
from tidemill_operator.keys import Key

logger = logging.getLogger(__name__)

DEFAULT_CONCURRENCY: Final = 8


class Outcome(Enum):
    """How a run ended, when it did not fail."""

    DONE = auto()
    GONE = auto()


@dataclass(frozen=True, kw_only=True)
class Again:
    """How a run ended that wants another one after a while, whether anything happens or not."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long the queue waits for what."""

    resync_seconds: float = 300.0
    first_backoff_seconds: float = 0.5
    max_backoff_seconds: float = 60.0

    def backoff(self, failures: int) -> float:
        """Give the pause after so many failures in a row."""
        return min(self.max_backoff_seconds, self.first_backoff_seconds * 2.0 ** min(failures - 1, 20))


@dataclass(kw_only=True)
class _Entry:
    """One key's task and what it waits for."""

    dirty: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    failures: int = 0
    started_at: float | None = None


class WorkQueue:
    """Runs a function over keys, one task per key."""

    def __init__(
        self,
        run: Callable[[Key], Awaitable[Outcome | Again]],
        clock: Clock,
        pace: Pace | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
    ) -> None:
        self._run = run
        self._clock = clock
        self._pace = pace or Pace()
        self._slots = asyncio.Semaphore(concurrency)
        self._entries: dict[Key, _Entry] = {}

    @property
    def keys(self) -> frozenset[Key]:
        """Give the keys that have a task."""
        return frozenset(self._entries)

    def longest_run_seconds(self) -> float:
        """Give for how long the slowest run in progress has been going on."""
        now = self._clock.monotonic()
        return max(
            (now - e.started_at for e in self._entries.values() if e.started_at is not None), default=0
        )

    def add(self, key: Key) -> None:
        """Ask for a run over a key as soon as possible; many calls before it starts are one."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            entry.task = asyncio.create_task(self._serve(key, entry), name=f"reconcile {key}")
            metrics.QUEUE_KEYS.set(len(self._entries))
        entry.dirty.set()

    async def close(self) -> None:
        """End all tasks, between or within their runs."""
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._entries.clear()

    async def _serve(self, key: Key, entry: _Entry) -> None:
        while True:
            entry.dirty.clear()
            pause = await self._run_once(key, entry)
            if pause is None and not entry.dirty.is_set():
                del self._entries[key]
                metrics.QUEUE_KEYS.set(len(self._entries))
                return
            await self._wait(entry, pause or 0.0)

    async def _run_once(self, key: Key, entry: _Entry) -> float | None:
        """Run once and give the pause until the next run; None when the key needs none."""
        async with self._slots:
            entry.started_at = self._clock.monotonic()
            try:
                with metrics.RECONCILE_SECONDS.time():
                    outcome = await self._run(key)
            except Exception as error:
                entry.failures += 1
                pause = self._pace.backoff(entry.failures)
                metrics.RECONCILES.labels("failed").inc()
                logger.warning(
                    "%s: run failed (%d in a row), next in %.1f s: %s",
                    key,
                    entry.failures,
                    pause,
                    error,
                    exc_info=_wants_trace(error),
                )
                return pause
            finally:
                entry.started_at = None
        entry.failures = 0
        if isinstance(outcome, Again):
            metrics.RECONCILES.labels("again").inc()
            return min(outcome.seconds, self._pace.resync_seconds)
        metrics.RECONCILES.labels(outcome.name.lower()).inc()
        return None if outcome is Outcome.GONE else self._pace.resync_seconds

    async def _wait(self, entry: _Entry, seconds: float) -> None:
        """Wait until the key is added again, or for so long."""
        added = asyncio.ensure_future(entry.dirty.wait())
        passed = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((added, passed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Not awaited: whoever suppresses their CancelledError may swallow that of this very task.
            added.cancel()
            passed.cancel()


def _wants_trace(error: Exception) -> bool:
    """Show where an unexpected error came from; the API's own answers speak for themselves."""
    return not isinstance(error, OperatorError)
