"""How many output tokens an answer holds, counted while it passes.

Pure. Knows OpenAI's usage object and server-sent events. Refuses to keep an answer: a few hundred characters
of its end are all it remembers. Where no usage is given, each event counts as one token.
"""

import re
from typing import Final

TAIL_BYTES: Final = 512
USAGE: Final = re.compile(rb'"completion_tokens"\s*:\s*([0-9]{1,9})')
EVENT: Final = b"data:"
END: Final = b"data: [DONE]"


class Meter:
    """The count of one answer so far."""

    def __init__(self, *, is_events: bool) -> None:
        self._is_events = is_events
        self._num_events = 0
        self._tail = b""

    @property
    def num_tokens(self) -> int:
        """The output tokens so far: what the answer itself says, or else its events."""
        stated = USAGE.findall(self._tail)
        return int(stated[-1]) if stated else self._num_events

    def feed(self, chunk: bytes) -> int:
        """Count a chunk; give the number of tokens that its events stand for."""
        self._tail = (self._tail + chunk[-TAIL_BYTES:])[-TAIL_BYTES:]
        if not self._is_events:
            return 0
        num = max(chunk.count(EVENT) - chunk.count(END), 0)
        self._num_events += num
        return num
