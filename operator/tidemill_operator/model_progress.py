"""How far a replica's model is on its way: being downloaded, or being read by the engine.

Pure. Knows what `/progress` on the admin port answers, and which of several replicas to tell about. Refuses
to know how it was asked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_PHASES: Final = frozenset({"listing", "downloading", "downloaded", "loading"})
_GIB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ModelProgress:
    """Bytes that are there, of how many; loading comes after downloading."""

    is_loading: bool
    loaded_bytes: int
    total_bytes: int

    @property
    def as_status(self) -> Mapping[str, int]:
        """Give the fields of status.model."""
        return {"loadedBytes": self.loaded_bytes, "totalBytes": self.total_bytes}

    def told(self) -> str:
        """Say it in words."""
        percent = 100 * self.loaded_bytes // self.total_bytes if self.total_bytes else 0
        return f"{percent} % of {self.total_bytes / _GIB:.1f} GiB"


def parse_progress(answer: Mapping[str, Any]) -> ModelProgress | None:
    """Read an answer; None when it says nothing that is known, or nothing yet."""
    phase, loaded, total = (answer.get(key) for key in ("phase", "loaded_bytes", "total_bytes"))
    if phase not in _PHASES or type(loaded) is not int or type(total) is not int:
        return None
    if total <= 0 or not 0 <= loaded <= total:
        return None
    return ModelProgress(is_loading=phase == "loading", loaded_bytes=loaded, total_bytes=total)


def furthest(found: Iterable[ModelProgress | None]) -> ModelProgress | None:
    """Choose the replica that will answer first."""
    known = [progress for progress in found if progress is not None]
    return max(known, key=lambda p: (p.is_loading, p.loaded_bytes / p.total_bytes), default=None)
