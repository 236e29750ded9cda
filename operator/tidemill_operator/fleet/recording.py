"""The loads of the last hours, as `tidemill-bench replay` reads them; in memory and bounded.

Knows lines of JSON and bytes. Refuses to know what is decided and who asks. Lines are compressed in groups;
where all services together have more than allowed, the oldest group of the one that has most goes.
"""

import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator.autoscaling.load_json import header, to_line
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.keys import Key

GROUP_LINES: Final = 60


@dataclass(kw_only=True)
class _Tape:
    """One service's lines: whole groups, the oldest first, and the one that is being filled."""

    groups: deque[bytes] = field(default_factory=deque)
    lines: list[str] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Return what the whole groups take."""
        return sum(map(len, self.groups))


class Recordings:
    """The recordings of all services; `max_bytes` 0 records nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tapes: dict[Key, _Tape] = {}

    def note(self, key: Key, load: FleetLoad) -> None:
        """Add a load."""
        if not self._max_bytes:
            return
        tape = self._tapes.setdefault(key, _Tape())
        tape.lines.append(to_line(load))
        if len(tape.lines) >= GROUP_LINES:
            tape.groups.append(zlib.compress("\n".join(tape.lines).encode()))
            tape.lines.clear()
            self._trim()

    def text(self, key: Key, scaling: Mapping[str, Any]) -> str | None:
        """Give a service's recording with its `spec.scaling` as the first line; None where there is none."""
        tape = self._tapes.get(key)
        if tape is None:
            return None
        whole = [zlib.decompress(group).decode() for group in tape.groups]
        return "\n".join([header(scaling), *whole, *tape.lines]) + "\n"

    def forget(self, key: Key) -> None:
        """Drop what belongs to a service that is gone."""
        self._tapes.pop(key, None)

    def _trim(self) -> None:
        sizes = {key: tape.num_bytes for key, tape in self._tapes.items()}
        while sum(sizes.values()) > self._max_bytes:
            largest = max(sizes, key=lambda key: sizes[key])
            sizes[largest] -= len(self._tapes[largest].groups.popleft())
