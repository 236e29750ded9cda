"""How a product with quantised weights is tiled, from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill_kernels.sizes import next_power_of_two


@dataclass(frozen=True, kw_only=True)
class ProductLaunch:
    """Tiles of rows by columns, and how many inputs one iteration takes."""

    rows: int
    columns: int
    inputs: int
    num_warps: int
    num_stages: int

    def grid(self, num_tokens: int, out_features: int) -> tuple[int, int]:
        """Return how many tiles there are each way."""
        return -(-num_tokens // self.rows), -(-out_features // self.columns)


def plan_product(num_tokens: int, group_size: int | None = None) -> ProductLaunch:
    """Choose tiles: low and wide for a few rows, which are bound by memory; square for many.

    A group of weights that shares a scale is never split over iterations of different scale: `inputs` divides
    `group_size`. Raises ValueError for a group that no tile divides.
    """
    # The largest power of two that divides the group.
    inputs = 64 if group_size is None else min(64, group_size & -group_size)
    if inputs < 16:
        raise ValueError(f"group sizes are multiples of a power of two of at least 16, not {group_size}")
    rows = max(16, min(128, next_power_of_two(num_tokens)))
    is_small = rows <= 32
    return ProductLaunch(
        rows=rows,
        columns=64 if is_small else 128,
        inputs=inputs,
        num_warps=4 if rows < 128 else 8,
        num_stages=4 if is_small else 3,
    )
