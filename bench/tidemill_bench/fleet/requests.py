"""A request in a simulated fleet, and what became of it. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FleetRequest:
    """One request; the replica that serves it writes down when its tokens came."""

    index: int
    arrival: float
    num_prompt: int
    num_output: int
    first_token: float = -1.0
    last_token: float = -1.0
    num_generated: int = 0
    is_failed: bool = False
    finish_tick: int = -1
    """The quick replica's: at which of its decode steps the last token comes."""
    num_computed: int = 0
    """The quick replica's: how much of the prompt is computed."""

    @property
    def has_started(self) -> bool:
        """Say whether the client has seen a token: then it can't be served again elsewhere."""
        return self.first_token >= 0

    @property
    def is_finished(self) -> bool:
        """Say whether its last token came."""
        return self.last_token >= 0

    def attains(self, ttft_seconds: float, itl_seconds: float) -> bool:
        """Say whether it got its tokens in time."""
        if self.is_failed or not self.is_finished:
            return False
        is_quick = self.first_token - self.arrival <= ttft_seconds
        gaps = max(1, self.num_output - 1)
        return is_quick and (self.last_token - self.first_token) / gaps <= itl_seconds
