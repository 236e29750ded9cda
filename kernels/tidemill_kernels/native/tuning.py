"""Chooses by a short measurement how each matrix is multiplied for each number of rows, and remembers it.

Knows times and a file. The choice changes speed, and results only within rounding.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill_kernels.native.build import default_cache
from tidemill_kernels.native.engine import MATRIX_KINDS, NUM_BUCKETS

if TYPE_CHECKING:
    from tidemill_kernels.native.engine import NativeEngine

logger = logging.getLogger(__name__)

_REPEATS = 2
_MOST_ROWS = 192
"""Stands for the last bucket, which has no upper end."""
_ALWAYS_TILES_FROM_BUCKET = 6
"""From 64 rows on tiles win by a factor; measuring would take longer than it could ever gain."""

Choices = list[list[bool]]
"""With tiles or without, per kind and bucket."""


def tune(engine: NativeEngine, library: Path, cache: Path | None = None) -> None:
    """Set the engine's ways, from the file if this machine has been measured before."""
    if not engine.has_tiles:
        return
    directory = default_cache() if cache is None else cache
    path = directory / f"ways-{_key(engine, library)}.json"
    choices = _read(path)
    if choices is None:
        choices = measure(engine)
        _write(path, choices)
    for kind, by_bucket in enumerate(choices):
        for bucket, with_tiles in enumerate(by_bucket):
            engine.use_tiles(kind, bucket, with_tiles=with_tiles)
    logger.info("tiles are used from these rows on: %s", first_rows_with_tiles(choices))


def measure(engine: NativeEngine) -> Choices:
    """Time every kind of matrix both ways for every bucket's largest number of rows."""

    def is_faster(kind: int, bucket: int) -> bool:
        if bucket >= _ALWAYS_TILES_FROM_BUCKET:
            return True
        rows = min(1 << bucket, _MOST_ROWS)
        seconds = {
            with_tiles: engine.time_matrix(kind, rows, with_tiles=with_tiles, repeats=_REPEATS)
            for with_tiles in (False, True)
        }
        return seconds[True] < seconds[False]

    return [[is_faster(kind, bucket) for bucket in range(NUM_BUCKETS)] for kind in range(len(MATRIX_KINDS))]


def first_rows_with_tiles(choices: Choices) -> dict[str, int | None]:
    """Return for each kind the fewest rows (a bucket's upper end) that are computed with tiles."""
    return {
        kind: next((1 << bucket for bucket, with_tiles in enumerate(by_bucket) if with_tiles), None)
        for kind, by_bucket in zip(MATRIX_KINDS, choices, strict=True)
    }


def _key(engine: NativeEngine, library: Path) -> str:
    """Return what a measurement holds for: the library, the model's shape, the CPUs."""
    cpus = f"{_cpu_model()}|{len(os.sched_getaffinity(0))}"
    return hashlib.sha256(f"{library.name}|{engine.shape}|{cpus}".encode()).hexdigest()[:16]


def _cpu_model() -> str:
    """Return the CPU's name as Linux has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")


def _read(path: Path) -> Choices | None:
    """Return what was measured before, or None."""
    try:
        choices = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    is_right = isinstance(choices, list) and [len(row) for row in choices] == [NUM_BUCKETS] * len(
        MATRIX_KINDS
    )
    return choices if is_right else None


def _write(path: Path, choices: Choices) -> None:
    """Remember, whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(choices))
        temporary.replace(path)
    except OSError as error:
        logger.info("the measured ways are not kept: %s", error)
