"""Loads of the reported kinds, drawn by a seed: nobody chooses their levels and times.

So the held-out loads can be drawn anew when the policy changes, and whoever works on the policy can draw as
many of the same kinds as wanted from other seeds. Each seed cuts the trace at a place of its own, but there
is only one hour of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tidemill_bench.fleet.loads import (
    CHAT,
    LONG_OUTPUT,
    PREFILL_HEAVY,
    Cut,
    Load,
    RateOverTime,
    at,
    bursts,
    diurnal,
    draw,
    from_trace,
    ramp,
    steps,
)

LENGTH = 2700.0
LATEST_START_SECONDS = 800.0
"""Of the hour that each trace has, minutes that are left for the start to be drawn from."""
CHAT_EACH = 0.72
"""Requests a second of the `chat` kind for each replica that a fleet starts with."""


def drawn(seed: int) -> list[Load]:
    """Return nine loads, 45 minutes each."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return round(float(rng.uniform(low, high)), 2)

    def times() -> tuple[float, float, float]:
        return between(450, 750), between(1150, 1450), between(1850, 2150)

    def levels(low: float, high: float) -> RateOverTime:
        return steps(*[(start, between(low, high)) for start in (0.0, *times())])

    def numbered(kind: int) -> int:
        return seed * 100 + kind

    constant, crashing = between(1.5, 4.5), between(2.5, 4.5)
    loads = [
        at(_replicas(constant), draw("constant", lambda _: constant, CHAT, LENGTH, numbered(1))),
        at(2, draw("steps", levels(0.8, 5.0), CHAT, LENGTH, numbered(2))),
        at(2, draw("ramp", _ramp(between, (0.8, 1.6), (4.0, 5.5)), CHAT, LENGTH, numbered(3))),
        at(
            2,
            draw(
                "day",
                diurnal(between(0.6, 1.2), between(4.0, 5.5), between(1200, 1700)),
                CHAT,
                LENGTH,
                numbered(4),
            ),
        ),
        at(
            3,
            draw(
                "bursts",
                bursts(
                    between(1.2, 2.0),
                    between(2.5, 3.5),
                    between(500, 800),
                    between(120, 200),
                    between(300, 500),
                ),
                CHAT,
                LENGTH,
                numbered(5),
            ),
        ),
        at(2, draw("long-prompts", levels(0.5, 1.4), PREFILL_HEAVY, LENGTH, numbered(6))),
        at(
            2,
            draw("long-outputs", _ramp(between, (0.5, 1.0), (1.8, 2.6)), LONG_OUTPUT, LENGTH, numbered(7)),
        ),
    ]
    cut = Cut(start_seconds=between(0, LATEST_START_SECONDS), first=int(rng.integers(8)))
    loads.append(at(3, from_trace("mooncake", "mooncake_conversation", 1 / 8, LENGTH, numbered(8), cut)))
    crashes = replace(
        at(_replicas(crashing), draw("crashes", lambda _: crashing, CHAT, LENGTH, numbered(9))),
        crashes_seconds=(between(900, 1500), between(1600, 2300)),
    )
    return [*loads, crashes]


def _ramp(
    between: Callable[[float, float], float], low: tuple[float, float], high: tuple[float, float]
) -> RateOverTime:
    return ramp(between(*low), between(*high), between(300, 700), between(1200, 1600), between(2100, 2600))


def _replicas(rate: float) -> int:
    """Return what a fleet of the `chat` kind starts with."""
    return math.ceil(rate / CHAT_EACH)
