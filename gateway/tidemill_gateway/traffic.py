"""How many requests are being worked on, and whether the gateway is going away.

Knows counts. Refuses to know what the requests are.
"""

import asyncio
from types import TracebackType


class Traffic:
    """The requests of one gateway; as a context manager it counts one request until the block ends."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.num_begun = 0
        self.is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.in_flight += 1
        self.num_begun += 1
        self._idle.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no request is being worked on."""
        await self._idle.wait()
