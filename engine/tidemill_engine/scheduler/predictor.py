"""How many tokens a request will write and how long it will take, guessed before it runs.

Knows what requests declare and how long the outputs of like ones were. Does not know queues or blocks. A
declared `max_tokens` bounds the guess; once requests of the same tenant and prompt size have ended, the
running quantile of their lengths is it. Memory is bounded: the buckets used least lately are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tidemill_engine.scheduler.order import Estimates
from tidemill_engine.scheduler.step_model import StepFeatures

if TYPE_CHECKING:
    from tidemill_engine.request import Request
    from tidemill_engine.scheduler.step_model import StepModel

QUANTILE = 0.75
MAX_BUCKETS = 4096
MIN_OBSERVATIONS = 4
_FIRST_STEP = 0.5
_LEAST_STEP = 0.02


class RunningQuantile:
    """One number that drifts towards a quantile of what it is shown (stochastic approximation, in logs)."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 1.0

    def observe(self, length: int) -> None:
        """Move towards one observed length, in steps that shrink."""
        self.count += 1
        if self.count == 1:
            self.value = float(max(length, 1))
            return
        step = max(_LEAST_STEP, _FIRST_STEP / self.count**0.5)
        towards = QUANTILE if length > self.value else QUANTILE - 1.0
        self.value = max(1.0, self.value * (1.0 + step * towards))


class LengthPredictor:
    """Output lengths per (tenant, prompt size to the power of two)."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, int], RunningQuantile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def predict(self, request: Request) -> int:
        """Return the number of output tokens to expect of a request."""
        declared = request.max_total_tokens - request.num_prompt_tokens
        bucket = self._buckets.get(_key(request))
        if bucket is None or bucket.count < MIN_OBSERVATIONS:
            return declared
        return max(1, min(declared, round(bucket.value)))

    def observe(self, request: Request, num_output_tokens: int) -> None:
        """Learn from a request that has ended by itself after so many tokens."""
        key = _key(request)
        bucket = self._buckets.pop(key, None) or RunningQuantile()
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        bucket.observe(num_output_tokens)


class WorkPredictor:
    """Seconds that requests take, by the length predictor and the step model."""

    def __init__(self, model: StepModel, max_chunk_tokens: int) -> None:
        self.lengths = LengthPredictor()
        self._model = model
        self._max_chunk = max_chunk_tokens

    def estimates(self) -> Estimates:
        """Return the two guesses that orders are made from."""
        return Estimates(prefill_seconds=self.prefill_seconds, total_seconds=self.total_seconds)

    def prefill_seconds(self, request: Request) -> float:
        """Return the seconds to compute a request's prompt by itself."""
        return self._model.predict_prefill(request.num_tokens, self._max_chunk)

    def total_seconds(self, request: Request) -> float:
        """Return the seconds to serve a request by itself; while the model is unfitted, 1 ms a token."""
        num_outputs = self.lengths.predict(request)
        if not self._model.is_fitted:
            return 0.001 * (request.num_prompt_tokens + num_outputs)
        middle = request.num_prompt_tokens + num_outputs / 2
        decode = self._model.predict(StepFeatures(1, middle, 0.0, 1))
        return self.prefill_seconds(request) + num_outputs * decode


def _key(request: Request) -> tuple[str, int]:
    """Return a request's bucket."""
    return request.tenant, request.num_prompt_tokens.bit_length()
