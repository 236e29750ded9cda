"""The one folder outside the repository that the harness writes to, and its locks."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.shell import tell

if TYPE_CHECKING:
    from collections.abc import Iterator


def cache_root() -> Path:
    """Return the cache folder, made if it is missing."""
    given = os.environ.get("TIDEMILL_CACHE")
    root = Path(given) if given else Path.home() / ".cache" / "tidemill"
    root.mkdir(parents=True, exist_ok=True)
    return root.absolute()


@contextmanager
def locked(name: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the cache's lock of this name; wait, and say so, while another process has it."""
    path = cache_root() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with path.open("a") as file:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"waiting for another process that holds {path}")
            fcntl.flock(file, mode)
        yield
