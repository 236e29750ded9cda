"""A uniform random number for one output position, a pure function of (seed, position, sibling).

So a request draws the same numbers alone or in a batch, preempted or not. Knows bits only.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MANTISSA_BITS = 53


def _mixed(value: int) -> int:
    """Return the finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection that scatters every bit."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int, sibling: int) -> float:
    """Return a number in [0, 1), independent for every argument."""
    bits = _mixed(_mixed(_mixed(seed & _MASK) ^ position) ^ sibling)
    return (bits >> (64 - _MANTISSA_BITS)) / (1 << _MANTISSA_BITS)


def row_seed(seed: int, sibling: int) -> int:
    """Return one signed 64-bit seed for a sibling's row, for generators that take a seed and a position."""
    mixed = _mixed(_mixed(seed & _MASK) ^ sibling)
    return mixed - (1 << 64) if mixed >> 63 else mixed
