"""How many requests are being worked on, and whether the gateway is going away.

Knows counts. Refuses to know what the requests are.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Traffic:
    """The requests of one gateway."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request until the block ends."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no request is being worked on."""
        await self._idle.wait()
