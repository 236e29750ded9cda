"""The loads, by name: one half tunes the policies, the other half is reported. An hour each; quick: half of it.

The kinds are the same in both halves (constant, steps, ramps, days, bursts, long prompts, long outputs, public
traces), their levels, times and seeds are not.
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

HOUR = 3600.0


def tuning() -> list[Load]:
    """Return the loads on which every policy's knobs were chosen, ours and the others'."""
    return [
        _at(3, draw("constant", lambda _: 3.2, CHAT, HOUR, 101)),
        _at(2, draw("steps", steps((0, 2), (900, 7), (1800, 3.5), (2700, 9)), CHAT, HOUR, 102)),
        _at(2, draw("ramp", ramp(2, 9, 600, 1800, 3000), CHAT, HOUR, 103)),
        _at(2, draw("day", diurnal(1.5, 8, 1800), CHAT, HOUR, 104)),
        _at(3, draw("bursts", bursts(2.5, 5, 900, 180, 450), CHAT, HOUR, 105)),
        _at(2, draw("long-prompts", steps((0, 0.8), (1200, 2.4), (2400, 1.4)), PREFILL_HEAVY, HOUR, 106)),
        _at(2, draw("long-outputs", ramp(1.2, 4, 900, 2100, 3300), LONG_OUTPUT, HOUR, 107)),
        _at(4, from_trace("azure-conversation", "azure_2023_conv", 3, HOUR, 108)),
    ]


def held_out() -> list[Load]:
    """Return the loads that are reported; nothing was tuned on them."""
    return [
        _at(5, draw("constant", lambda _: 5.0, CHAT, HOUR, 201)),
        _at(4, draw("steps", steps((0, 4), (700, 10), (1600, 2), (2500, 6)), CHAT, HOUR, 202)),
        _at(2, draw("ramp", ramp(1.5, 10, 500, 1300, 2600), CHAT, HOUR, 203)),
        _at(2, draw("day", diurnal(2, 9, 2400), CHAT, HOUR, 204)),
        _at(3, draw("bursts", bursts(3, 6, 600, 120, 500), CHAT, HOUR, 205)),
        _at(2, draw("long-prompts", ramp(0.8, 3, 600, 1500, 3000), PREFILL_HEAVY, HOUR, 206)),
        _at(2, draw("long-outputs", steps((0, 1.5), (1000, 4), (2300, 2)), LONG_OUTPUT, HOUR, 207)),
        _at(3, from_trace("azure-code", "azure_2023_code", 3, HOUR, 208)),
        replace(
            _at(5, draw("crashes", lambda _: 5.0, CHAT, HOUR, 209)), crashes_seconds=(1200.0, 2400.0)
        ),
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
