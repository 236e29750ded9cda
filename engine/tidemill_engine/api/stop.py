"""Finds stop strings in a text that arrives in pieces. Knows text only: no tokens, no streams. Pure.

The result does not depend on how the text is cut into pieces: the stop string that ends first wins, and of
several that end together the longest. Not one of its characters is returned; other text is held back only
while it may be its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StopResult:
    """Text that may be shown now, and the stop string if one is complete."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Watches one sequence for any of several stop strings."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    @property
    def is_idle(self) -> bool:
        """Say whether there is nothing to watch for, so that text need not pass through."""
        return not self._stops

    def feed(self, text: str) -> StopResult:
        """Add text; return what can no longer be part of a stop string, or everything before the match."""
        if not self._stops or not text:
            return StopResult(text=text)
        self._held += text
        match = self._first_match()
        if match is not None:
            shown, stop = match
            self._held = ""
            return StopResult(text=shown, matched=stop)
        num_held = self._num_possible_beginning()
        shown = self._held[: len(self._held) - num_held]
        self._held = self._held[len(shown) :]
        return StopResult(text=shown)

    def flush(self) -> str:
        """Return what was held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    def _first_match(self) -> tuple[str, str] | None:
        found = ((self._held.find(stop), stop) for stop in self._stops)
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return self._held[:start], stop

    def _num_possible_beginning(self) -> int:
        """Length of the longest end of the held text that begins some stop string."""
        longest = min(len(self._held), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            tail = self._held[len(self._held) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
