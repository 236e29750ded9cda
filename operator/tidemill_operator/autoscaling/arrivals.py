"""How much work arrives, and will when pods asked for now are ready: no more than the counts can show.

Knows intervals with requests and prompt tokens. A rise counts as one when it stands out of the noise that
random arrivals of random lengths have anyway, so a constant load is a constant number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill_operator.autoscaling.memory import Arrivals

LONG_SECONDS = 300.0
SHORT_SECONDS = 60.0
BURST_SECONDS = 15.0
FALL_SECONDS = 60.0
TREND_SECONDS = 240.0
TREND_NOISE = 2.0
NOISE = 1.0
"""Standard deviations that a rise must stand out by."""
FALL_NOISE = 1.0
"""The same of a fall, which costs less to follow too early."""
REQUEST_VARIATION = 2.0
"""Variance of random arrivals' work over (count x mean squared): 1 for the count, about 1 for lengths."""
MAX_GROWTH = 1.3


@dataclass(frozen=True, kw_only=True)
class ArrivalRate:
    """Requests a second: as measured over the last minutes, what is sure of a rise, and what is coming."""

    measured: float
    sure: float
    forecast: float
    prompt_tokens_per_request: float | None
    seconds: float
    """How long has been measured."""

    @property
    def expected(self) -> float:
        """Return the rate to be ready for."""
        return max(self.measured, self.sure, self.forecast)


def arrival_rate(samples: tuple[Arrivals, ...], now: float, horizon_seconds: float) -> ArrivalRate | None:
    """Return the rate now and in so many seconds; None without samples."""
    recent = [s for s in samples if s.at > now - LONG_SECONDS]
    if not recent:
        return None
    measured = _rate(recent)
    sure = 0.0
    for seconds in (SHORT_SECONDS, BURST_SECONDS):
        window = [s for s in recent if s.at > now - seconds]
        if window:
            count = sum(s.requests for s in window)
            sure = max(sure, (count - NOISE * math.sqrt(REQUEST_VARIATION * count)) / _seconds(window))
    settled = _settled(recent, now, measured)
    return ArrivalRate(
        measured=settled,
        sure=sure,
        forecast=_forecast(recent, now, horizon_seconds),
        prompt_tokens_per_request=_prompt_tokens(samples, recent),
        seconds=_seconds(recent),
    )


def _prompt_tokens(samples: Sequence[Arrivals], recent: Sequence[Arrivals]) -> float | None:
    """Return the mean prompt over all that is remembered, or of late where that is clearly another."""
    requests, late = (sum(s.requests for s in part) for part in (samples, recent))
    if requests <= 0:
        return None
    mean = sum(s.prompt_tokens for s in samples) / requests
    if late <= 0:
        return mean
    now = sum(s.prompt_tokens for s in recent) / late
    return now if abs(now - mean) > 2 * NOISE * mean / math.sqrt(late) else mean


def _settled(recent: list[Arrivals], now: float, measured: float) -> float:
    """Return the rate of the last minutes, or of the last one where it has clearly fallen since."""
    window = [s for s in recent if s.at > now - FALL_SECONDS]
    if not window:
        return measured
    seconds = _seconds(window)
    count = sum(s.requests for s in window)
    highest = (count + FALL_NOISE * math.sqrt(REQUEST_VARIATION * max(1.0, count))) / seconds
    return min(measured, highest)


def _rate(samples: list[Arrivals]) -> float:
    return sum(s.requests for s in samples) / _seconds(samples)


def _seconds(samples: list[Arrivals]) -> float:
    return max(1e-9, sum(s.seconds for s in samples))


def _forecast(recent: list[Arrivals], now: float, horizon_seconds: float) -> float:
    """Return where a steady rise leads; 0 where there is none.

    A rise is steady if each third of the window is above the one before, and the last third itself rises: a
    jump is not, and is not led on.
    """
    third = TREND_SECONDS / 3
    parts = [_between(recent, now - age * third, third) for age in (3, 2, 1)]
    halves = [_between(recent, now - third, third / 2), _between(recent, now - third / 2, third / 2)]
    if any(_seconds(part) < third / 3 for part in (*parts, *halves)):
        return 0.0
    first, middle, last = (_rate(part) for part in parts)
    noise = math.sqrt(REQUEST_VARIATION * (first + last) / third)
    rises = (
        (last - first) / 2,
        2 * (middle - first),
        2 * (last - middle),
        4 * (_rate(halves[1]) - _rate(halves[0])),
    )
    if min(rises) <= 0 or last - first < TREND_NOISE * noise:
        return 0.0
    return min(last + min(rises) / third * (horizon_seconds + third / 2), MAX_GROWTH * last)


def _between(samples: list[Arrivals], start: float, seconds: float) -> list[Arrivals]:
    return [s for s in samples if start < s.at <= start + seconds]
