"""What only the running process remembers: counters as last read. Lost with it, found again in a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Counters as last read, by who counted: a process that restarts is another one."""

    counters: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
