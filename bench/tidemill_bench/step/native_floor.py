"""Times the matrices of SmolLM2-135M in our C++ kernels, where this machine can run them.

Knows the kernels' own stopwatch: all layers' matrices in the order of a step, so that weights come from
where they do in a step. Weights as bfloat16 and in the file's own blocks are both measured, since the
engine holds either.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from tidemill_bench.race.contender import Precision
from tidemill_bench.smollm2 import VOCAB_SIZE
from tidemill_kernels.native.build import CompilerMissingError, find_library
from tidemill_kernels.native.cpu import best_path
from tidemill_kernels.native.engine import MATRIX_KINDS, WHOLE_MODEL, EngineShape, NativeEngine
from tidemill_kernels.native.library import load_library

logger = logging.getLogger(__name__)

_HEAD_KIND = MATRIX_KINDS.index("head")
_REPEATS = 4
SHAPE = EngineShape(
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=VOCAB_SIZE,
    max_positions=512,
    block_size=32,
    rms_norm_eps=1e-5,
)
_MOST_ROWS_WITHOUT_TILES = 32
"""Beyond, tiles win by a factor where there are any."""
_SHAPES: dict[Precision, tuple[EngineShape, ...]] = {
    "bf16": (SHAPE, replace(SHAPE, weights="q4_1", head="q8_0")),
    "int8": (replace(SHAPE, weights="int8", head="int8"),),
    "int4": (replace(SHAPE, weights="int4", head="int8"),),
}


class NativeFloor:
    """The kernels' least times, by the fastest of their ways and formats."""

    def __init__(self, engines: Sequence[NativeEngine]) -> None:
        self._engines = engines

    @classmethod
    def open(cls, precision: Precision = "bf16") -> NativeFloor | None:
        """Return the floor at a precision, or None where there are no such kernels for this machine."""
        path = best_path()
        if path is None:
            return None
        try:
            library = load_library(find_library(path))
        except CompilerMissingError as error:
            logger.warning("our kernels are not measured: %s", error)
            return None
        num_threads = len(os.sched_getaffinity(0))
        return cls([NativeEngine(library, shape, num_threads) for shape in _SHAPES[precision]])

    def layers(self, num_rows: int) -> float:
        """Return the least seconds of all layers' matrices for so many rows."""
        return self._product(WHOLE_MODEL, num_rows)

    def head(self, num_rows: int) -> float:
        """Return the least seconds of the output matrix."""
        return self._product(_HEAD_KIND, num_rows)

    def _product(self, kind: int, num_rows: int) -> float:
        return min(
            engine.time_matrix(kind, num_rows, with_tiles=with_tiles, repeats=_REPEATS)
            for engine in self._engines
            for with_tiles in ((False, True) if engine.has_tiles else (False,))
            if with_tiles or num_rows <= _MOST_ROWS_WITHOUT_TILES or not engine.has_tiles
        )
