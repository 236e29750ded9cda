"""The loads of the last hours, as `tidemill-bench replay` reads them; in memory and bounded.

Knows lines of JSON and bytes. Refuses to know what is decided and who asks. Lines are compressed in groups;
where all services together have more than allowed, those that are not compressed yet counted in, the oldest
group of the one that has most goes.
"""

import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from tidemill_operator.autoscaling.load_json import header, to_line
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.keys import Key

GROUP_BYTES: Final = 64 * 1024
"""So many bytes of lines become a group: some minutes of a small service, and more than zlib looks back."""


@dataclass(kw_only=True)
class _Tape:
    """One service's lines: whole groups, the oldest first, and the one that is being filled."""

    groups: deque[bytes] = field(default_factory=deque)
    lines: list[bytes] = field(default_factory=list)
    num_line_bytes: int = 0
    num_bytes: int = 0
    """What groups and lines take together."""

    def add(self, line: bytes) -> None:
        """Add a line, and make a group of the latest ones where they are enough."""
        self.lines.append(line)
        self.num_line_bytes += len(line)
        self.num_bytes += len(line)
        if self.num_line_bytes >= GROUP_BYTES:
            self._end_group()

    def shrink(self) -> None:
        """Drop the oldest group; where there is none yet, make one of the lines."""
        if self.groups:
            self.num_bytes -= len(self.groups.popleft())
        else:
            self._end_group()

    def _end_group(self) -> None:
        group = zlib.compress(b"".join(self.lines))
        self.groups.append(group)
        self.num_bytes += len(group) - self.num_line_bytes
        self.lines, self.num_line_bytes = [], 0


class Recordings:
    """The recordings of all services; `max_bytes` 0 records nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tapes: dict[Key, _Tape] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Return what all recordings take."""
        return self._num_bytes

    def note(self, key: Key, load: FleetLoad) -> None:
        """Add a load."""
        if not self._max_bytes:
            return
        tape = self._tapes.setdefault(key, _Tape())
        before = tape.num_bytes
        tape.add(to_line(load).encode() + b"\n")
        self._num_bytes += tape.num_bytes - before
        while self._num_bytes > self._max_bytes:
            largest = max(self._tapes.values(), key=lambda tape: tape.num_bytes)
            before = largest.num_bytes
            largest.shrink()
            self._num_bytes += largest.num_bytes - before

    def parts(self, key: Key, scaling: Mapping[str, Any]) -> Iterator[bytes] | None:
        """Give a service's recording, its `spec.scaling` as the first line; None where there is none.

        It comes in parts of whole lines, since all of it may be many times what it takes here.
        """
        tape = self._tapes.get(key)
        if tape is None:
            return None
        first, last = header(scaling).encode() + b"\n", b"".join(tape.lines)
        return chain((first,), map(zlib.decompress, tuple(tape.groups)), (last,))

    def forget(self, key: Key) -> None:
        """Drop what belongs to a service that is gone."""
        tape = self._tapes.pop(key, None)
        self._num_bytes -= tape.num_bytes if tape is not None else 0
