"""How the normalisation is launched, from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill_kernels.sizes import next_power_of_two

MAX_SIZE = 65_536


@dataclass(frozen=True, kw_only=True)
class NormLaunch:
    """One program per row; block: the row's size rounded up to a power of two."""

    block: int
    num_warps: int


def plan_norm(size: int) -> NormLaunch:
    """Lay out a row of `size` elements.

    Raises ValueError for a row that no program can hold.
    """
    if not 0 < size <= MAX_SIZE:
        raise ValueError(f"rows of 1 to {MAX_SIZE} elements can be normalised, not {size}")
    block = next_power_of_two(size)
    return NormLaunch(block=block, num_warps=min(16, max(1, block // 512)))
