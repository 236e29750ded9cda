"""Sizes of blocks and tiles. Pure, so that launch plans and kernels round alike."""

from __future__ import annotations


def next_power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number of at least 1; 1 for less."""
    return 1 << max(0, number - 1).bit_length()
