"""The loads, by name: one half tunes the policies, the other is reported. 45 minutes each.

The kinds are the same in both halves (constant, steps, ramps, days, bursts, long prompts, long outputs,
public traces), their levels, times and seeds are not.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill_bench.fleet.loads import (
    CHAT,
    LONG_OUTPUT,
    PREFILL_HEAVY,
    Load,
    bursts,
    diurnal,
    draw,
    from_trace,
    ramp,
    steps,
)

LENGTH = 2700.0


def tuning() -> list[Load]:
    """Return the loads on which every policy's knobs were chosen, ours and the others'."""
    return [
        _at(3, draw("constant", lambda _: 1.8, CHAT, LENGTH, 101)),
        _at(2, draw("steps", steps((0, 1), (600, 4), (1300, 2), (2000, 5)), CHAT, LENGTH, 102)),
        _at(2, draw("ramp", ramp(1, 5, 400, 1300, 2300), CHAT, LENGTH, 103)),
        _at(2, draw("day", diurnal(0.8, 4.5, 1350), CHAT, LENGTH, 104)),
        _at(3, draw("bursts", bursts(1.5, 3, 700, 150, 400), CHAT, LENGTH, 105)),
        _at(2, draw("long-prompts", steps((0, 0.5), (900, 1.4), (1800, 0.8)), PREFILL_HEAVY, LENGTH, 106)),
        _at(2, draw("long-outputs", ramp(0.7, 2.4, 600, 1500, 2500), LONG_OUTPUT, LENGTH, 107)),
        _at(4, from_trace("azure-conversation", "azure_2023_conv", 2, LENGTH, 108)),
    ]


def held_out() -> list[Load]:
    """Return the loads that are reported; nothing was tuned on them."""
    return [
        _at(4, draw("constant", lambda _: 2.9, CHAT, LENGTH, 201)),
        _at(3, draw("steps", steps((0, 2), (500, 5), (1200, 1.2), (1900, 3.5)), CHAT, LENGTH, 202)),
        _at(2, draw("ramp", ramp(0.8, 5.5, 400, 1000, 2000), CHAT, LENGTH, 203)),
        _at(2, draw("day", diurnal(1, 5, 1800), CHAT, LENGTH, 204)),
        _at(3, draw("bursts", bursts(1.8, 3.5, 500, 120, 450), CHAT, LENGTH, 205)),
        _at(2, draw("long-prompts", ramp(0.5, 1.8, 500, 1200, 2300), PREFILL_HEAVY, LENGTH, 206)),
        _at(2, draw("long-outputs", steps((0, 0.9), (800, 2.4), (1700, 1.2)), LONG_OUTPUT, LENGTH, 207)),
        _at(3, from_trace("azure-code", "azure_2023_code", 2, LENGTH, 208)),
        replace(_at(4, draw("crashes", lambda _: 2.9, CHAT, LENGTH, 209)), crashes_seconds=(900.0, 1800.0)),
    ]


def shortened(load: Load, seconds: float) -> Load:
    """Return the first part of a load."""
    return replace(
        load,
        duration_seconds=min(seconds, load.duration_seconds),
        arrivals=tuple(a for a in load.arrivals if a[0] < seconds),
        crashes_seconds=tuple(c for c in load.crashes_seconds if c < seconds),
    )


def _at(replicas: int, load: Load) -> Load:
    return replace(load, initial_replicas=replicas)
