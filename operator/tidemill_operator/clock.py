"""Time as something that is handed in, so that tests need not wait."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the queue and the leader election need of time."""

    def monotonic(self) -> float:
        """Give seconds that never run backwards."""
        ...

    def now(self) -> datetime:
        """Give the time of day, in UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Give seconds that never run backwards."""
        return time.monotonic()

    def now(self) -> datetime:
        """Give the time of day, in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
