"""What a compiled kernel takes of a multiprocessor, read from the disassembler's listing. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LISTED = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
# What one thread block may have on every target: 163 KiB on sm_80, 99 KiB on sm_89, 227 KiB on sm_90.
SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448}
MAX_REGISTERS = 255


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Registers per thread, shared memory per block, and bytes per thread that did not fit in registers."""

    registers: int
    shared_bytes: int
    spilled_bytes: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a variant may take at most."""

    registers: int = MAX_REGISTERS
    spilled_bytes: int = 0

    def broken_by(self, found: Resources, capability: int) -> list[str]:
        """Return what is beyond the bounds, in words; shared memory is the device's own bound."""
        limits = (
            ("registers", found.registers, self.registers),
            ("spilled bytes", found.spilled_bytes, self.spilled_bytes),
            ("bytes of shared memory", found.shared_bytes, SHARED_BYTES[capability]),
        )
        return [f"{value} {name}, at most {limit}" for name, value, limit in limits if value > limit]


def parse_resources(listing: str, shared_bytes: int) -> Resources:
    """Read `cuobjdump --dump-resource-usage`; shared memory that is asked for at launch is not listed there.

    Raises ValueError where the listing has no resource line.
    """
    found = _LISTED.search(listing)
    if found is None:
        raise ValueError(f"no resource line in {listing[:200]!r}")
    registers, stack, static, local = (int(number) for number in found.groups())
    return Resources(
        registers=registers, shared_bytes=max(shared_bytes, static), spilled_bytes=max(stack, local)
    )
