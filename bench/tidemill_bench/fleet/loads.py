"""Loads of simulated fleets: shapes of the rate over time, lengths, and the public traces scaled up.

Half of the kinds tune the policies, the other half, which no policy was tuned on, is reported. Chance is by
seed: the same name gives the same requests. Rates are requests a second; a replica of the default machine
carries about 0.9 of the `chat` kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tidemill_bench.fleet.requests import FleetRequest
from tidemill_bench.traces import load_trace

RateOverTime = Callable[[float], float]
MAX_PROMPT_TOKENS = 8192
MAX_OUTPUT_TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Log-normal lengths: medians, and the spread of their logarithms."""

    prompt_median: float
    output_median: float
    prompt_spread: float = 0.8
    output_spread: float = 0.7


CHAT = Lengths(prompt_median=800, output_median=170)
PREFILL_HEAVY = Lengths(prompt_median=2000, output_median=24, prompt_spread=0.4)
LONG_OUTPUT = Lengths(prompt_median=250, output_median=700, output_spread=0.5)


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load: when requests arrive and how long they are; `crashes_seconds`: a replica dies then."""

    name: str
    duration_seconds: float
    arrivals: tuple[tuple[float, int, int], ...]
    """(seconds, prompt tokens, output tokens), in order."""
    crashes_seconds: tuple[float, ...] = ()
    initial_replicas: int = 1
    warmup_seconds: float = 300.0
    """What happens before is not counted."""

    def requests(self) -> list[FleetRequest]:
        """Return the requests, fresh."""
        return [
            FleetRequest(index=index, arrival=at, num_prompt=prompt, num_output=output)
            for index, (at, prompt, output) in enumerate(self.arrivals)
        ]


def at(replicas: int, load: Load) -> Load:
    """Let a fleet meet a load with so many replicas."""
    return replace(load, initial_replicas=replicas)


def draw(name: str, rate: RateOverTime, lengths: Lengths, duration: float, seed: int) -> Load:
    """Draw a Poisson process of that rate, by thinning, and lengths for it."""
    rng = np.random.default_rng(seed)
    highest = max(rate(t) for t in np.linspace(0.0, duration, 2000))
    times = np.cumsum(rng.exponential(1.0 / highest, int(highest * duration * 1.3) + 100))
    times = times[times < duration]
    keep = rng.uniform(size=len(times)) * highest < np.array([rate(t) for t in times])
    times = times[keep]
    prompts = _lognormal(rng, lengths.prompt_median, lengths.prompt_spread, len(times), MAX_PROMPT_TOKENS)
    outputs = _lognormal(rng, lengths.output_median, lengths.output_spread, len(times), MAX_OUTPUT_TOKENS)
    return Load(
        name=name,
        duration_seconds=duration,
        arrivals=tuple(zip(times.tolist(), prompts, outputs, strict=True)),
    )


def _lognormal(rng: np.random.Generator, median: float, spread: float, count: int, highest: int) -> list[int]:
    drawn = median * np.exp(spread * rng.standard_normal(count))
    return [int(x) for x in np.clip(np.rint(drawn), 4, highest)]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Which part of a trace: from this second on; of every third or eighth request, from which one on."""

    start_seconds: float = 0.0
    first: int = 0


def from_trace(
    name: str, trace: str, copies: float, duration: float, seed: int, cut: Cut | None = None
) -> Load:
    """Return a public trace with so many requests for each of its own, each within 10 s of it.

    With less than one copy, as 1/3, only every third of its requests is taken.
    The traces were cut down (data/ATTRIBUTION.md); the minutes keep their shape, bursts of seconds are
    smoothed, lengths are drawn from the trace's own. Prefix sharing is left out.
    """
    rng = np.random.default_rng(seed)
    cut = cut or Cut()
    start = cut.start_seconds
    original = [r for r in load_trace(trace) if start <= r.arrival_seconds < start + duration]
    original = original[cut.first :: max(1, round(1 / copies))]
    arrivals = []
    for request in original:
        for copy in range(max(1, int(copies))):
            other = request if copy == 0 else original[int(rng.integers(len(original)))]
            shift = 0.0 if copy == 0 else float(rng.uniform(-10.0, 10.0))
            at = min(duration, max(0.0, request.arrival_seconds - start + shift))
            prompt = min(MAX_PROMPT_TOKENS, other.num_prompt_tokens)
            arrivals.append((at, prompt, min(MAX_OUTPUT_TOKENS, other.num_output_tokens)))
    return Load(name=name, duration_seconds=duration, arrivals=tuple(sorted(arrivals)))


def steps(*levels: tuple[float, float]) -> RateOverTime:
    """Return a rate that jumps: pairs (from second, rate)."""

    def rate(t: float) -> float:
        return [level for start, level in levels if start <= t][-1]

    return rate


def ramp(low: float, high: float, start: float, end: float, back: float) -> RateOverTime:
    """Return a rate that climbs from `start` to `end` and falls back by `back`."""

    def rate(t: float) -> float:
        up = min(1.0, max(0.0, (t - start) / (end - start)))
        down = min(1.0, max(0.0, (t - end) / (back - end)))
        return low + (high - low) * (up - down)

    return rate


def diurnal(low: float, high: float, period: float) -> RateOverTime:
    """Return a rate that rises and falls like a day's."""
    return lambda t: low + (high - low) * (0.5 - 0.5 * math.cos(2 * math.pi * t / period)) ** 1.5


def bursts(base: float, height: float, every: float, length: float, first: float) -> RateOverTime:
    """Return a rate with bursts: every so often, for so long."""
    return lambda t: base + (height if t >= first and (t - first) % every < length else 0.0)
