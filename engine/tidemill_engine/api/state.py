"""What the API process knows about the engine now: phase, figures, draining; and the verdicts drawn from it.

Knows values only; time is an argument. Does not know sockets, processes or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemill_engine.errors import EngineUnavailable
from tidemill_engine.messages import CoreReady, CoreStats, LoadProgress

STALL_SECONDS = 60.0
LOADING_RETRY_AFTER_SECONDS = 5


class RequestNotTaken(EngineUnavailable):
    """This engine has not begun the request and will not; another replica can take it.

    Never for a request that was with the core when it died: what killed one must not be sent to the next.
    """


class Phase(Enum):
    """How far the core is."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class Drain(Enum):
    """How far the engine is on its way out."""

    NO = "no"
    ACCEPTING = "accepting"
    """Not ready any more, but still accepting while the news spreads."""
    REFUSING = "refusing"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to a probe, with its reason."""

    is_ok: bool
    reason: str


class EngineState:
    """One engine's condition; written by the supervisor and the drain, read by everyone."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.drain = Drain.NO
        self.ready: CoreReady | None = None
        self.progress: LoadProgress | None = None
        self.stats: CoreStats | None = None
        self.failure = ""
        self.ready_time = 0.0
        self._progress_time = 0.0

    def on_ready(self, ready: CoreReady, now: float) -> None:
        """Note that the model is loaded."""
        self.ready_time = now
        self.ready = ready
        self.stats = self.stats or _empty_stats(ready)
        self.phase = Phase.READY

    def on_failed(self, message: str) -> None:
        """Note that this engine will not serve any more; the first reason stays."""
        self.failure = self.failure or message
        self.phase = Phase.FAILED

    def on_stats(self, stats: CoreStats, now: float) -> None:
        """Take new figures and note whether any token was computed since the last ones."""
        before = self.stats
        if before is None or stats.num_waiting == 0 or _has_computed(before, stats):
            self._progress_time = now
        self.stats = stats

    def require_accepting(self) -> None:
        """Raise where a new request can't be taken."""
        if self.drain is Drain.REFUSING:
            raise RequestNotTaken("this engine is draining and takes no new requests", code="draining")
        if self.phase is Phase.LOADING:
            raise RequestNotTaken("the model is still loading", code="loading")
        if self.phase is Phase.FAILED:
            raise RequestNotTaken(f"the engine has failed: {self.failure}", code="engine_failed")

    def readiness(self) -> Verdict:
        """Say whether new requests should be sent here; overload does not count."""
        if self.phase is Phase.FAILED:
            return Verdict(is_ok=False, reason=f"failed: {self.failure}")
        if self.phase is Phase.LOADING:
            return Verdict(is_ok=False, reason="loading")
        if self.drain is not Drain.NO:
            return Verdict(is_ok=False, reason="draining")
        return Verdict(is_ok=True, reason="ready")

    def liveness(self, now: float, *, is_overdue: bool, is_in_long_step: bool = False) -> Verdict:
        """Say whether the core still makes progress; loading has the startup probe for that.

        A step that is known to take long has its own deadline: nothing stands still meanwhile.
        """
        if self.phase is Phase.FAILED:
            return Verdict(is_ok=False, reason=f"failed: {self.failure}")
        if self.phase is Phase.LOADING:
            return Verdict(is_ok=True, reason="loading")
        if is_overdue:
            return Verdict(is_ok=False, reason="the core has missed its deadline")
        waiting = self.stats.num_waiting if self.stats is not None else 0
        if waiting and not is_in_long_step and now - self._progress_time > STALL_SECONDS:
            reason = f"{waiting} requests wait and no token was computed for {STALL_SECONDS:g} s"
            return Verdict(is_ok=False, reason=reason)
        return Verdict(is_ok=True, reason="ok")


def _empty_stats(ready: CoreReady) -> CoreStats:
    """Return the figures of a core that has done nothing yet."""
    return CoreStats(
        num_running=0,
        num_waiting=0,
        num_free_blocks=ready.num_blocks,
        num_total_blocks=ready.num_blocks,
        num_steps=0,
        num_preemptions=0,
        prompt_tokens=0,
        generation_tokens=0,
    )


def _has_computed(before: CoreStats, after: CoreStats) -> bool:
    """Say whether any token was computed in between, those of chunks in the middle of a prompt included."""
    return any(after.iteration_tokens) or after.generation_tokens > before.generation_tokens
