"""Results of the others' runs: kept on disk after a sweep, and shipped for the loads that are reported.

A result is kept under everything that it depends on: the load's requests, the settings, the policy's knobs
and the text of the modules that a run goes through. What decides for ours is not among them, so only the
others' results are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tidemill_bench.fleet as here
from tidemill_bench.fleet.score import Point
from tidemill_engine import scheduler
from tidemill_engine.scheduler.chunking import MIN_CHUNK_TOKENS
from tidemill_engine.scheduler.running import NEWCOMERS_SHARE
from tidemill_engine.scheduler.step_model import TILE_TOKENS
from tidemill_operator import autoscaling

if TYPE_CHECKING:
    from tidemill_bench.fleet.loads import Load
    from tidemill_bench.fleet.settings import FleetSettings

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemill" / "fleet"
SHIPPED = Path(here.__file__).parent.parent / "data" / "fleet_others.json"
_MODULES = (
    "chance.py",
    "fleet.py",
    "peers/*.py",
    "pods.py",
    "quick_replica.py",
    "replica.py",
    "requests.py",
    "roster.py",
    "scheduler_replica.py",
)


def _shipped() -> dict[str, Any]:
    """Return the results that come with the package, by key."""
    return dict(json.loads(SHIPPED.read_text(encoding="utf-8"))) if SHIPPED.exists() else {}


@dataclass(frozen=True, kw_only=True)
class Store:
    """Points by what they depend on: in a folder, one file each, and shipped ones."""

    folder: Path = FOLDER
    shipped: Mapping[str, Any] = field(default_factory=_shipped)

    def find(self, key: str) -> Point | None:
        """Return what is known under a key; None where nothing is, or what is kept is not readable."""
        if key in self.shipped:
            return Point(**self.shipped[key])
        try:
            return Point(**json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def keep(self, key: str, point: Point) -> None:
        """Keep a point; a process that does the same at the same time writes the same."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f"{key}.{os.getpid()}"
        partial.write_text(json.dumps(asdict(point)), encoding="utf-8")
        partial.replace(self.folder / f"{key}.json")


def write_shipped(points: Iterable[tuple[str, Point]], path: Path) -> None:
    """Write points as the file that is shipped, a line each."""
    lines = [f"{json.dumps(key)}: {json.dumps(asdict(point))}" for key, point in sorted(points)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def key_of(policy: str, knobs: str, load: Load, settings: FleetSettings, engine: str) -> str:
    """Return the key of a run."""
    facts = (policy, knobs, repr(load), repr(settings), engine, _code_version(engine))
    return hashlib.sha256("\x00".join(facts).encode()).hexdigest()[:32]


@cache
def _code_version(engine: str) -> str:
    """Return a digest of the modules that a run goes through, and of the engine's rules that they use."""
    digest = hashlib.sha256(repr((MIN_CHUNK_TOKENS, NEWCOMERS_SHARE, TILE_TOKENS)).encode())
    folder = Path(here.__file__).parent
    files = [path for pattern in _MODULES for path in sorted(folder.glob(pattern))]
    files += sorted(Path(autoscaling.__file__).parent.glob("model.py"))
    if engine == "scheduler":
        files += sorted(Path(scheduler.__file__).parent.rglob("*.py"))
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()
