"""How the gate is launched, from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill_kernels.sizes import next_power_of_two


@dataclass(frozen=True, kw_only=True)
class GateLaunch:
    """A grid of rows by blocks of columns."""

    grid: tuple[int, int]
    block: int
    num_warps: int


def plan_gate(num_tokens: int, size: int) -> GateLaunch:
    """Lay out `num_tokens` rows whose gate and up parts have `size` columns each."""
    block = min(1024, next_power_of_two(size))
    return GateLaunch(grid=(num_tokens, -(-size // block)), block=block, num_warps=max(1, block // 256))
