"""Those who have come while nobody runs: what their first step contains, and how long it waits for the rest.

Knows the prompts that such a step would begin with and its predicted time. Does not know messages or clocks.

A crowd's requests are sent together and yet arrive one by one. A step that begins with the first half of them
gives that half its first tokens and then holds it up for as long as the other half's prompts take.
"""

from __future__ import annotations

import math

from tidemill_engine.scheduler.step_model import StepFeatures

MAX_WAIT_SHARE = 0.1
"""A step waits at most so much of the time that it is predicted to take."""
SILENCE_SECONDS = 0.005
SILENCE_SHARE = 0.02
"""Nobody coming for so long, or for this share of the step where that is more, means that all are there.

A busy server hands on 64 requests in two or three lots, 10 to 20 ms apart.
"""

_EMPTY = StepFeatures(0, 0.0, 0.0, 0)


class Crowd:
    """Grows by each request that comes while nobody runs, until the next step is chosen."""

    def __init__(self, *, max_tokens: int, max_requests: int) -> None:
        self._max_tokens = max_tokens
        self._max_requests = max_requests
        self.clear()

    def clear(self) -> None:
        """Begin anew: a step is chosen, or somebody has left."""
        self._step = _EMPTY
        self._num_requests = 0
        self._led: set[bytes] = set()
        self.deadline = math.inf
        """By when, on the clock of arrivals, the first of them is promised its first token."""

    def add(
        self, num_tokens: int, start: int, *, leads: bytes | None = None, deadline: float = math.inf
    ) -> None:
        """Count a request that begins with so many tokens of its prompt, behind those that are cached.

        `leads` names what comes first of these: who begins with the same waits for it and adds nothing.
        """
        self._num_requests += 1
        self.deadline = min(self.deadline, deadline)
        if leads is not None:
            if leads in self._led:
                return
            self._led.add(leads)
        self._step = self._step.with_chunk(num_tokens, start)

    @property
    def step(self) -> StepFeatures | None:
        """Return what the first step contains; None where one is alone or the step has no room for more."""
        is_full = self._step.num_tokens >= self._max_tokens or self._num_requests >= self._max_requests
        return None if self._num_requests < 2 or is_full else self._step


def within(step_seconds: float, seconds_left: float) -> float:
    """Return the step's seconds, or so few that a wait for stragglers leaves its first token in time.

    `seconds_left` is the time until that token is promised.
    """
    return max(0.0, min(step_seconds, (seconds_left - step_seconds) / MAX_WAIT_SHARE))


def straggler_seconds(step_seconds: float, waited_seconds: float) -> float:
    """Return how long a step of so many seconds waits for the next request, having waited so long.

    It is the silence after which nobody more is expected, or what is left of the step's share where that is
    less; not positive where the step should begin.
    """
    silence = max(SILENCE_SECONDS, SILENCE_SHARE * step_seconds)
    return min(silence, MAX_WAIT_SHARE * step_seconds - waited_seconds)
