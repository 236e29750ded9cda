"""The two clocks that the gateway reads, in one value, so that a test can stop both."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """`monotonic` for durations, `wall` for what others read, both in seconds."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
