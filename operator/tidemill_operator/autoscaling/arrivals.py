"""How much work arrives: a level, a jump or a steady rise or fall, whichever the counts show.

Knows intervals with requests and prompt tokens. The last five minutes are read as a jump (what came before
it no longer counts) or as a line whose slope counts as far as it stands out of the noise that random arrivals
have anyway. Where neither is seen, longer windows count while a single level explains them, so that a
constant load becomes a constant number the longer it lasts. What the last minute alone is sure of bounds all
that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill_operator.autoscaling.memory import Arrivals

WINDOW_SECONDS = 300.0
LONG_WINDOWS_SECONDS = (900.0, 1800.0)
BOUND_SECONDS = (30.0, 60.0, 120.0)
DISPERSION = 1.5
"""Variance over mean of a count: 1 where arrivals are independent, more where they come in clumps."""
JUMP_NOISE = 4.0
"""Standard errors by which a jump must stand out."""
LINE_NOISE, LATE_LINE_NOISE = 2.5, 3.25
"""Standard errors up to which a slope may be a level's noise; the more for one at the end of a quarter of an
hour, or of all that was measured, that as a whole is a level, and for saying that such a quarter was none."""
RISE_NOISE, FALL_NOISE = 1.5, 0.5
"""Standard errors of a slope that counts for nothing; beyond them ever more of it counts. A fall that is
followed too early costs less than a rise."""
LEAST_NOISE, MOST_NOISE = 3.5, 1.5
"""Standard errors that what a short window is sure of stands off its mean, below and above."""
STEADY_SHARE = 0.95
"""Of half an hour so much must have been measured to say that it was a level."""
SHORTEST_SECONDS = 9.0
"""A jump is seen in no shorter time."""
LENGTH_NOISE = 2.0
LEAST_FOR_SPREAD = 60
"""Requests from which on something is said of how much prompts differ."""
MAX_GROWTH = 1.2


@dataclass(frozen=True, kw_only=True)
class ArrivalRate:
    """Requests a second now, how far that may be off, and where a steady change leads."""

    measured: float
    error: float
    slope: float
    """Requests a second gained every second, as far as the counts are sure of it."""
    least: float
    most: float
    """What short windows are sure of: at least, at most."""
    prompt_tokens_per_request: float | None
    seconds: float
    """How long has been measured."""
    is_level: bool
    """Whether nothing but noise was seen for minutes."""
    was_level: bool
    """The same for a quarter of an hour as a whole, or as long as was measured, whatever its last minutes are
    like."""
    is_steady: bool
    """The same for half an hour."""
    prompt_spread: float | None
    """Standard deviation of prompts over their mean, as far as what came together shows it."""
    horizon_seconds: float
    """When what is asked for now is there."""

    @property
    def forecast(self) -> float:
        """Return the rate when pods asked for now are ready; the present one unless it rises."""
        rising = self.measured + max(0.0, self.slope) * self.horizon_seconds
        return min(rising, MAX_GROWTH * self.measured)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """What a window shows: the rate at its end, by how much that may be off, and its slope."""

    rate: float
    error: float
    slope: float = 0.0
    is_level: bool = True


def arrival_rate(samples: tuple[Arrivals, ...], now: float, horizon_seconds: float) -> ArrivalRate | None:
    """Return the rate now and where it leads in so many seconds; None without samples."""
    recent = _since(samples, now - LONG_WINDOWS_SECONDS[-1])
    window = _since(recent, now - WINDOW_SECONDS)
    if not window:
        return None
    quarter = _since(recent, now - LONG_WINDOWS_SECONDS[0])
    is_quarter_level = _shape(quarter, now).is_level
    fit = _fit(recent, window, now, LATE_LINE_NOISE if is_quarter_level else LINE_NOISE)
    was_level = is_quarter_level or _shape(quarter, now, LATE_LINE_NOISE).is_level
    mean, spread = _prompts(recent, window)
    short = [_level(part) for seconds in BOUND_SECONDS if (part := _since(window, now - seconds))]
    return ArrivalRate(
        measured=fit.rate,
        error=fit.error,
        slope=0.0 if fit.is_level else fit.slope,
        is_level=fit.is_level,
        was_level=was_level,
        is_steady=was_level and _is_steady(recent, now),
        least=max((one.rate - LEAST_NOISE * one.error for one in short), default=0.0),
        most=min((one.rate + MOST_NOISE * one.error for one in short), default=math.inf),
        prompt_tokens_per_request=mean,
        prompt_spread=spread,
        seconds=sum(s.seconds for s in recent),
        horizon_seconds=horizon_seconds,
    )


def _is_steady(recent: list[Arrivals], now: float) -> bool:
    """Say whether half an hour was measured and is a level."""
    is_long = sum(s.seconds for s in recent) > STEADY_SHARE * LONG_WINDOWS_SECONDS[-1]
    return is_long and _shape(recent, now).is_level


def _since(samples: Sequence[Arrivals], time: float) -> list[Arrivals]:
    return [s for s in samples if s.at > time]


def _fit(recent: list[Arrivals], window: list[Arrivals], now: float, line_noise: float) -> _Fit:
    """Return what the last minutes show, or a longer level where they are one."""
    fit = _shape(window, now, line_noise)
    if not fit.is_level:
        return fit
    for seconds in LONG_WINDOWS_SECONDS:
        longer = _since(recent, now - seconds)
        if not _shape(longer, now).is_level:
            break
        fit = _level(longer)
    return fit


def _level(window: Sequence[Arrivals]) -> _Fit:
    """Return the mean of a window."""
    seconds = max(1e-9, sum(s.seconds for s in window))
    count = sum(s.requests for s in window)
    return _Fit(rate=count / seconds, error=math.sqrt(DISPERSION * max(1.0, count)) / seconds)


def _shape(window: list[Arrivals], now: float, line_noise: float = LINE_NOISE) -> _Fit:
    """Read a window as a level, a jump or a line."""
    jump, after = _best_jump(window)
    line, noise = _line(window, now)
    if jump > JUMP_NOISE and jump * jump > noise * noise + JUMP_NOISE:
        later = _after_last_jump(window[after:])
        return replace(_level(later), is_level=False)
    return replace(line, is_level=noise <= line_noise)


def _after_last_jump(window: list[Arrivals]) -> list[Arrivals]:
    """Return what is left of a window after the last jump in it."""
    jump, after = _best_jump(window)
    return _after_last_jump(window[after:]) if jump > JUMP_NOISE else window


def _best_jump(window: list[Arrivals]) -> tuple[float, int]:
    """Return by how many standard errors the rate differs most between before and after, and where.

    Errors are of the likelihood ratio: so they hold for counts of a few, too, which by chance alone are twice
    or three times their mean more often than a normal distribution's would be.
    """
    seconds, count = sum(s.seconds for s in window), sum(s.requests for s in window)
    best, place = 0.0, 0
    before_count = before_seconds = 0.0
    for index, sample in enumerate(window[:-1], start=1):
        before_count += sample.requests
        before_seconds += sample.seconds
        after_seconds = seconds - before_seconds
        if min(before_seconds, after_seconds) < SHORTEST_SECONDS:
            continue
        share = before_seconds / seconds
        surprise = _surprise(before_count, count * share)
        surprise += _surprise(count - before_count, count * (1.0 - share))
        if surprise > best:
            best, place = surprise, index
    return math.sqrt(2.0 * best / DISPERSION), place


def _surprise(seen: float, expected: float) -> float:
    """Return the part of a log-likelihood ratio that a count has."""
    return seen * math.log(seen / expected) if min(seen, expected) > 0 else 0.0


def _line(window: list[Arrivals], now: float) -> tuple[_Fit, float]:
    """Return the straight line through a window, and how many standard errors its slope is.

    Of a slope of z standard errors the share 1 - (noise / z)^2 counts.
    """
    level, seconds = _level(window), sum(s.seconds for s in window)
    places = [s.at - s.seconds / 2 for s in window]
    middle = sum(place * s.seconds for place, s in zip(places, window, strict=True)) / max(1e-9, seconds)
    spread = sum((place - middle) ** 2 * s.seconds for place, s in zip(places, window, strict=True))
    if spread <= 0:
        return level, 0.0
    slope = sum((place - middle) * s.requests for place, s in zip(places, window, strict=True)) / spread
    noise = abs(slope) / (level.error * math.sqrt(seconds / spread))
    ignored = RISE_NOISE if slope > 0 else FALL_NOISE
    counts = 1.0 - (ignored / noise) ** 2 if noise > ignored else 0.0
    slope *= counts
    return (
        _Fit(
            rate=max(0.0, level.rate + slope * (now - middle)),
            error=level.error * math.sqrt(1.0 + counts * seconds * (now - middle) ** 2 / spread),
            slope=slope,
            is_level=False,
        ),
        noise,
    )


def _prompts(recent: Sequence[Arrivals], window: Sequence[Arrivals]) -> tuple[float | None, float | None]:
    """Return the mean prompt and its spread over all that is remembered, or of late where that differs."""
    mean = _prompt_mean(recent)
    lately = _prompt_mean(window)
    if mean is None or lately is None:
        return mean, _prompt_spread(recent)
    late = sum(s.requests for s in window)
    if abs(lately - mean) > LENGTH_NOISE * mean / math.sqrt(late):
        return lately, _prompt_spread(window)
    return mean, _prompt_spread(recent)


def _prompt_mean(samples: Sequence[Arrivals]) -> float | None:
    requests = sum(s.requests for s in samples)
    return sum(s.prompt_tokens for s in samples) / requests if requests > 0 else None


def _prompt_spread(samples: Sequence[Arrivals]) -> float | None:
    """Return the standard deviation of prompts over their mean; None where too few came.

    n requests that came together have n means of tokens, give or take the variance of n prompts.
    """
    some = [s for s in samples if s.requests > 0]
    mean = _prompt_mean(some)
    if not mean or sum(s.requests for s in some) < LEAST_FOR_SPREAD or len(some) < 2:
        return None
    squares = sum((s.prompt_tokens - s.requests * mean) ** 2 / s.requests for s in some)
    return math.sqrt(squares / (len(some) - 1)) / mean
