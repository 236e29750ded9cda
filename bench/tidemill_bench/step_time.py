"""How long a step takes: a linear model of what is in it, fitted to measurements and kept as JSON.

Knows step contents and seconds. Does not measure, and does not know why a step was chosen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill_engine.scheduler.step_model import TILE_TOKENS, FittedStep, StepFeatures, StepModel

FloatArray = npt.NDArray[np.float64]
FEATURES = ("step", "tiled_token", "decode_context", "chunk_work", "logit_row")
DEFAULT_CONSTANTS = "step_time_smollm2_cpu.json"


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step = the sum of coefficients (seconds, in the order of `FEATURES`) times features."""

    coefficients: tuple[float, ...]
    relative_error: float = 0.0
    """Median of |predicted - measured| / measured over the measured steps."""
    provenance: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.coefficients) != len(FEATURES):
            raise ValueError(f"coefficients must be {len(FEATURES)} numbers, not {len(self.coefficients)}")
        if min(self.coefficients) < 0 or max(self.coefficients) <= 0:
            raise ValueError(f"coefficients must be at least 0 and not all 0, not {self.coefficients}")

    @cached_property
    def model(self) -> StepModel:
        """Return the engine's own step model with these coefficients."""
        first, token, context, work, logits = self.coefficients
        return StepModel(FittedStep(coefficients=(first, token, context, work, logits), residual_p90=0.0))

    def seconds(self, features: StepFeatures) -> float:
        """Return how long such a step takes."""
        return self.model.predict(features)

    def scaled(self, factor: float) -> StepTime:
        """Return the times of a machine that takes so many times as long."""
        return replace(self, coefficients=tuple(factor * c for c in self.coefficients))

    def as_json(self) -> dict[str, object]:
        """Return what a constants file holds."""
        return {
            "coefficients": dict(zip(FEATURES, self.coefficients, strict=True)),
            "relative_error": self.relative_error,
            "provenance": self.provenance,
        }

    def __str__(self) -> str:
        told = [self.provenance[name] for name in ("model", "machine", "method") if name in self.provenance]
        return "; ".join(told) or "given constants"

    @staticmethod
    def from_json(text: str) -> StepTime:
        """Read a constants file; raises ValueError where it is none."""
        try:
            plain = json.loads(text)
            coefficients = tuple(float(plain["coefficients"][name]) for name in FEATURES)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a file of step-time constants: {error!r}") from error
        return StepTime(
            coefficients=coefficients,
            relative_error=float(plain.get("relative_error", 0.0)),
            provenance=dict(plain.get("provenance", {})),
        )


def load_step_time(path: Path | None = None) -> StepTime:
    """Read the constants in `path`, or those that come with this package."""
    if path is not None:
        return StepTime.from_json(path.read_text(encoding="utf-8"))
    shipped = resources.files("tidemill_bench") / "data" / DEFAULT_CONSTANTS
    return StepTime.from_json(shipped.read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is in one kind of step, and the median seconds that it took."""

    features: StepFeatures
    seconds: float


def fit(measurements: Sequence[Measurement], provenance: dict[str, str] | None = None) -> StepTime:
    """Fit non-negative coefficients with the least squared relative error.

    Five features: every subset is solved and the best that is non-negative taken, which is exact.
    """
    if len(measurements) < len(FEATURES):
        raise ValueError(f"{len(measurements)} measurements can't fit {len(FEATURES)} coefficients")
    seconds = np.array([m.seconds for m in measurements])
    features = np.array([_row(m.features) for m in measurements])
    weighted = features / seconds[:, None]
    best, best_error = np.zeros(len(FEATURES)), float("inf")
    for size in range(1, len(FEATURES) + 1):
        for chosen in itertools.combinations(range(len(FEATURES)), size):
            columns = list(chosen)
            solved, *_ = np.linalg.lstsq(weighted[:, columns], np.ones(len(seconds)), rcond=None)
            error = float(((weighted[:, columns] @ solved - 1.0) ** 2).sum())
            if solved.min() >= 0 and error < best_error:
                best, best_error = np.zeros(len(FEATURES)), error
                best[columns] = solved
    relative = np.abs(features @ best - seconds) / seconds
    return StepTime(
        coefficients=tuple(float(c) for c in best),
        relative_error=float(np.median(relative)),
        provenance=provenance or {},
    )


def _row(features: StepFeatures) -> FloatArray:
    tiled = -(-features.num_tokens // TILE_TOKENS) * TILE_TOKENS
    return np.array([1.0, tiled, features.decode_context, features.chunk_work, features.num_logit_rows])
