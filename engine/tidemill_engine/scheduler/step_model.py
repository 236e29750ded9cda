"""How long a step takes, learnt while serving: non-negative recursive least squares on five features.

Knows what a step contains and the seconds that it took. Does not measure time and does not choose steps.
Errors count relative to the step's own time, so that short steps are fitted as well as long ones. Decode
steps and steps with chunks are forgotten apart: an hour of decoding does not wear out what prompts cost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemill_engine.step import FloatArray

if TYPE_CHECKING:
    from tidemill_engine.step import SchedulerOutput

logger = logging.getLogger(__name__)

TILE_TOKENS = 16
"""Matrix products work on whole tiles: so many tokens cost the same as one."""
FORGET = 0.998
MIN_SAMPLES = 8
_SOLVE_EVERY = 8
_SOLVE_EVERY_LATER = 32
_YOUNG_SAMPLES = 128
_MAX_ROUNDS = 32
_TOLERANCE = 1e-12
_RIDGE = 1e-9
_HUBER = 3.0
"""Errors beyond so many times the usual one weigh less."""
_LEAST_ERROR = 0.02
_NUM_RESIDUALS = 256
_QUANTILE = 0.9


class StepFeatures(NamedTuple):
    """What a step contains; `chunk_work` is the sum of chunk * (start + chunk / 2)."""

    num_tokens: int
    decode_context: float
    chunk_work: float
    num_logit_rows: int

    @property
    def has_chunk(self) -> bool:
        """Say whether any row computes more than one token."""
        return self.chunk_work > 0.0

    def with_chunk(self, count: int, start: int) -> StepFeatures:
        """Return the step with one more chunk, that of a prompt of which `start` tokens are computed."""
        return StepFeatures(
            num_tokens=self.num_tokens + count,
            decode_context=self.decode_context,
            chunk_work=self.chunk_work + count * (start + count / 2),
            num_logit_rows=self.num_logit_rows + 1,
        )


def features_of(output: SchedulerOutput, *, with_padding: bool = True) -> StepFeatures:
    """Return what a step contains; padding costs what tokens and their attention cost."""
    padding_tokens = output.num_padding_tokens if with_padding else 0
    padding_pairs = float(output.num_padding_pairs) if with_padding else 0.0
    num_rows = len(output.rows)
    if output.num_tokens == num_rows:  # all decode, as nearly always
        return StepFeatures(
            num_tokens=num_rows + padding_tokens,
            decode_context=float(int(output.start_pos.sum()) + num_rows) + padding_pairs,
            chunk_work=0.0,
            num_logit_rows=len(output.logit_rows),
        )
    counts = output.num_scheduled_tokens.astype(np.float64)
    starts = output.start_pos.astype(np.float64)
    is_decode = counts == 1
    chunks = counts[~is_decode]
    return StepFeatures(
        num_tokens=int(counts.sum()) + padding_tokens,
        decode_context=float((starts[is_decode] + 1).sum()),
        chunk_work=float((chunks * (starts[~is_decode] + chunks / 2)).sum()) + padding_pairs,
        num_logit_rows=len(output.logit_rows),
    )


@dataclass(frozen=True, kw_only=True)
class FittedStep:
    """A fitted model as plain numbers: seconds per unit of (step, tiled token, context, work, logit row)."""

    coefficients: tuple[float, float, float, float, float]
    residual_p90: float
    """90th percentile of (measured - predicted) / predicted, at least 0."""


class StepModel:
    """Predicts steps' seconds; worth nothing until `is_fitted`."""

    def __init__(self, fitted: FittedStep | None = None) -> None:
        self._normal = {kind: np.zeros((5, 5)) for kind in (False, True)}
        self._target = {kind: np.zeros(5) for kind in (False, True)}
        self._coefficients = [0.0] * 5 if fitted is None else list(fitted.coefficients)
        self._residuals: FloatArray = np.zeros(_NUM_RESIDUALS)
        self._num_residuals = 0
        self._residual_p90 = 0.0 if fitted is None else fitted.residual_p90
        self._usual_error = 1.0
        self._num_samples = 0
        self._samples: list[tuple[StepFeatures, float, float]] = []
        """Features, seconds and weights of steps since the last solution, which alone needs them."""
        self._is_given = fitted is not None

    @property
    def is_fitted(self) -> bool:
        """Say whether enough steps were seen, or a fitted model was given."""
        return self._is_given or self._num_samples >= MIN_SAMPLES

    @property
    def residual_p90(self) -> float:
        """Return the 90th percentile of (measured - predicted) / predicted, at least 0."""
        return self._residual_p90

    def fitted(self) -> FittedStep:
        """Return the model as plain numbers, from which another one can start."""
        first, token, context, work, logits = self._coefficients
        return FittedStep(coefficients=(first, token, context, work, logits), residual_p90=self._residual_p90)

    def predict(self, features: StepFeatures) -> float:
        """Return a step's expected seconds; 0 before anything is known."""
        first, token, context, work, logits = self._coefficients
        return (
            first
            + token * _tiled(features.num_tokens)
            + context * features.decode_context
            + work * features.chunk_work
            + logits * features.num_logit_rows
        )

    def predict_p90(self, features: StepFeatures) -> float:
        """Return the seconds that nine of ten such steps stay within."""
        return self.predict(features) * (1.0 + self._residual_p90)

    def predict_prefill(self, num_tokens: int, max_chunk: int) -> float:
        """Return the seconds to compute a prompt by itself in chunks of at most that many tokens."""
        if num_tokens <= 0:
            return 0.0
        num_chunks = math.ceil(num_tokens / max_chunk)
        whole = StepFeatures(num_tokens, 0.0, num_tokens * num_tokens / 2, 1)
        return self.predict(whole) + (num_chunks - 1) * self._coefficients[0]

    def calibrate(self, samples: Iterable[tuple[StepFeatures, float]]) -> None:
        """Learn from measured steps at the start."""
        for features, seconds in samples:
            self.observe(features, seconds)
        self._solve()
        logger.info("step model after %d steps: %s", self._num_samples, self.fitted())

    def observe(self, features: StepFeatures, seconds: float) -> None:
        """Learn from one measured step."""
        if not (math.isfinite(seconds) and seconds > 0.0):
            return
        predicted = self.predict(features)
        weight = self._weight(predicted, seconds)
        if predicted > 0.0 and self.is_fitted:
            self._residuals[self._num_residuals % _NUM_RESIDUALS] = (seconds - predicted) / predicted
            self._num_residuals += 1
        self._samples.append((features, seconds, weight))
        self._num_samples += 1
        is_young = self._num_samples <= _YOUNG_SAMPLES
        if self._num_samples % (_SOLVE_EVERY if is_young else _SOLVE_EVERY_LATER) == 0:
            self._solve()

    def _weight(self, predicted: float, seconds: float) -> float:
        """Return how much a sample counts: less where it is far beyond the usual error (Huber)."""
        if not self.is_fitted or predicted <= 0.0:
            return 1.0
        usual = _HUBER * max(_LEAST_ERROR, self._usual_error)
        error = abs(seconds - predicted) / predicted
        return 1.0 if error <= usual else usual / error

    def _add_samples(self) -> None:
        """Add the steps since the last solution to the sums of their kind, in their order."""
        samples, self._samples = self._samples, []
        for kind in (False, True):
            of_kind = [sample for sample in samples if sample[0].has_chunk == kind]
            if not of_kind:
                continue
            rows = np.stack([_row(features) / seconds for features, seconds, _ in of_kind])
            weights = np.array([weight for _, _, weight in of_kind])
            normals = weights[:, None, None] * (rows[:, :, None] * rows[:, None, :])
            targets = weights[:, None] * rows
            normal, target = self._normal[kind], self._target[kind]
            for index in range(len(of_kind)):
                normal *= FORGET
                normal += normals[index]
                target *= FORGET
                target += targets[index]

    def _solve(self) -> None:
        """Find the non-negative coefficients of least squared error, starting from the present ones."""
        self._add_samples()
        normal = self._normal[False] + self._normal[True]
        target = self._target[False] + self._target[True]
        scale = np.sqrt(np.maximum(np.diagonal(normal), 1e-300))
        scaled = normal / np.outer(scale, scale) + _RIDGE * np.eye(5)
        self._coefficients = (_non_negative(scaled, target / scale) / scale).tolist()
        count = min(self._num_residuals, _NUM_RESIDUALS)
        if count:
            recent = self._residuals[:count]
            self._usual_error = float(np.median(np.abs(recent)))
            self._residual_p90 = max(0.0, float(np.quantile(recent, _QUANTILE)))


def _tiled(num_tokens: int) -> int:
    """Return a number of tokens rounded up to whole tiles."""
    return -(-num_tokens // TILE_TOKENS) * TILE_TOKENS


def _row(features: StepFeatures) -> FloatArray:
    """Return the features in the order of the coefficients: `[5]`."""
    return np.array(
        [
            1.0,
            _tiled(features.num_tokens),
            features.decode_context,
            features.chunk_work,
            features.num_logit_rows,
        ],
        dtype=np.float64,
    )


def _non_negative(normal: FloatArray, target: FloatArray) -> FloatArray:
    """Minimise x'Nx/2 - t'x over x >= 0 (Lawson and Hanson's active set); a feature never seen gets 0."""
    x = np.zeros(len(target))
    free: list[int] = []
    for _ in range(_MAX_ROUNDS):
        slope = target - normal @ x
        slope[free] = -np.inf
        enters = int(np.argmax(slope))
        if slope[enters] <= _TOLERANCE:
            break
        free.append(enters)
        while free:
            solved = np.linalg.solve(normal[np.ix_(free, free)], target[free])
            if solved.min() > 0.0:
                x[:] = 0.0
                x[free] = solved
                break
            now = x[free]
            sinking = solved <= 0.0
            share = float(np.min(now[sinking] / np.maximum(now[sinking] - solved[sinking], 1e-300)))
            x[free] = now + share * (solved - now)
            free = [j for j in free if x[j] > _TOLERANCE]
            x[[j for j in range(len(x)) if j not in free]] = 0.0
    return x
