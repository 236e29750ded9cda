"""One compilation: a kernel with the types and constants that it is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill_kernels.ahead_of_time.resources import Bounds

Constant = int | bool | float

FP8_CAPABILITY = 89


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One compilation.

    kernel: `module:function`; pointers: dtype per pointer argument; numbers: type per plain argument;
    min_capability: below it the hardware lacks a dtype.
    """

    name: str
    kernel: str
    pointers: Mapping[str, str]
    numbers: Mapping[str, str]
    constants: Mapping[str, Constant]
    num_warps: int
    num_stages: int = 3
    min_capability: int = 80
    bounds: Bounds = field(default_factory=Bounds)
