"""Times the matrices of SmolLM2-135M in our C++ kernels, where this machine can run them.

Knows the kernels' own stopwatch: each product reads another layer's weights, as in a model.
"""

from __future__ import annotations

import logging
import os

from tidemill_kernels.native.build import CompilerMissingError, find_library
from tidemill_kernels.native.cpu import best_path
from tidemill_kernels.native.engine import MATRIX_KINDS, EngineShape, NativeEngine
from tidemill_kernels.native.library import load_library

logger = logging.getLogger(__name__)

_HEAD_KIND = MATRIX_KINDS.index("head")
_REPEATS = 60
SHAPE = EngineShape(
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_positions=512,
    block_size=32,
    rms_norm_eps=1e-5,
)


class NativeFloor:
    """The kernels' least times, by the faster of their ways."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine

    @classmethod
    def open(cls) -> NativeFloor | None:
        """Return the floor, or None where there are no such kernels for this machine."""
        path = best_path()
        if path is None:
            return None
        try:
            library = load_library(find_library(path))
        except CompilerMissingError as error:
            logger.warning("our kernels are not measured: %s", error)
            return None
        return cls(NativeEngine(library, SHAPE, len(os.sched_getaffinity(0))))

    def layers(self, num_rows: int) -> float:
        """Return the least seconds of all layers' matrices for so many rows."""
        kinds = [kind for kind in range(len(MATRIX_KINDS)) if kind != _HEAD_KIND]
        return SHAPE.num_layers * sum(self._product(kind, num_rows, _REPEATS) for kind in kinds)

    def head(self, num_rows: int) -> float:
        """Return the least seconds of the output matrix."""
        return self._product(_HEAD_KIND, num_rows, _REPEATS // 8)

    def _product(self, kind: int, num_rows: int, repeats: int) -> float:
        ways = (False, True) if self._engine.has_tiles else (False,)
        return min(
            self._engine.time_matrix(kind, num_rows, with_tiles=with_tiles, repeats=repeats)
            for with_tiles in ways
        )
