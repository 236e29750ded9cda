"""Chance that is the same for every policy: a number for a name, whatever was asked before."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, *names: int) -> float:
    """Return a number from 0 to 1 that depends on the arguments alone (splitmix64)."""
    state = seed & _MASK
    for name in names:
        state = (state ^ (name & _MASK)) * 0x9E3779B97F4A7C15 & _MASK
        state ^= state >> 30
        state = state * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 27
        state = state * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state / (_MASK + 1)
