"""The loads, by name: one half tunes the policies, the other is reported. 45 minutes each.

The kinds are the same in both halves (constant, steps, ramps, days, bursts, long prompts, long outputs,
public traces), their levels, times and seeds are not.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill_bench.fleet.drawing import LENGTH, drawn
from tidemill_bench.fleet.loads import (
    CHAT,
    LONG_OUTPUT,
    PREFILL_HEAVY,
    Load,
    at,
    bursts,
    diurnal,
    draw,
    from_trace,
    ramp,
    steps,
)


def tuning() -> list[Load]:
    """Return the loads on which every policy's knobs were chosen, ours and the others'."""
    return [
        at(3, draw("constant", lambda _: 1.8, CHAT, LENGTH, 101)),
        at(2, draw("steps", steps((0, 1), (600, 4), (1300, 2), (2000, 5)), CHAT, LENGTH, 102)),
        at(2, draw("ramp", ramp(1, 5, 400, 1300, 2300), CHAT, LENGTH, 103)),
        at(2, draw("day", diurnal(0.8, 4.5, 1350), CHAT, LENGTH, 104)),
        at(3, draw("bursts", bursts(1.5, 3, 700, 150, 400), CHAT, LENGTH, 105)),
        at(2, draw("long-prompts", steps((0, 0.5), (900, 1.4), (1800, 0.8)), PREFILL_HEAVY, LENGTH, 106)),
        at(2, draw("long-outputs", ramp(0.7, 2.4, 600, 1500, 2500), LONG_OUTPUT, LENGTH, 107)),
        at(4, from_trace("azure-conversation", "azure_2023_conv", 2, LENGTH, 108)),
    ]


HELD_OUT_SEED = 503
"""Whoever changes the policy draws new loads, by another seed; earlier versions reported other ones."""


def held_out() -> list[Load]:
    """Return the loads that are reported; nothing was tuned on them."""
    return drawn(HELD_OUT_SEED)


def steady() -> list[Load]:
    """Return constant loads of an hour at several rates, on which ours should change next to nothing."""
    levels = ((2, 1.2), (3, 1.7), (3, 2.2), (4, 2.8), (5, 3.3), (6, 4.1))
    return [
        at(replicas, draw(f"{rate:g}/s", steps((0, rate)), CHAT, 3900.0, 320 + number))
        for number, (replicas, rate) in enumerate(levels)
    ]


def shortened(load: Load, seconds: float) -> Load:
    """Return the first part of a load."""
    return replace(
        load,
        duration_seconds=min(seconds, load.duration_seconds),
        arrivals=tuple(a for a in load.arrivals if a[0] < seconds),
        crashes_seconds=tuple(c for c in load.crashes_seconds if c < seconds),
    )
