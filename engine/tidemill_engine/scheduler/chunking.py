"""How many prompt tokens join a step's decodes: as many as the running requests' inter-token SLOs allow.

Knows the step model, the SLO of each row and the last pure-decode step. Does not know blocks or prompts. An
SLO is kept by nine of ten steps; where there is none, a chunk is sized by what is expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.scheduler.step_model import StepFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_engine.scheduler.base import DecodeLoad
    from tidemill_engine.scheduler.step_model import StepModel
    from tidemill_engine.step import FloatArray

MIN_CHUNK_TOKENS = 32
MAX_MIXED_RATIO = 5.0
"""A mixed step may take so many times the last pure-decode step where no SLO says otherwise.

At 3 a burst's last prompts wait a tenth to a quarter longer than at 5, for gaps that are a quarter to a half
shorter.
"""
LOST_SLO_RATIO = 1.5
"""An SLO that a step without a chunk does not keep either is taken for so many times such a step.

Otherwise a wish for the impossible would slow down everybody's prompts and help nobody.
"""


def largest_chunk(
    predict: Callable[[StepFeatures], float],
    decodes: StepFeatures,
    *,
    allowed_seconds: float,
    start: int,
    most: int,
) -> int:
    """Return the longest chunk with which the step stays within the time by prediction, at least 32."""
    least = min(MIN_CHUNK_TOKENS, most)
    if predict(decodes.with_chunk(most, start)) <= allowed_seconds:
        return most
    fits, too_long = least, most
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if predict(decodes.with_chunk(middle, start)) <= allowed_seconds:
            fits = middle
        else:
            too_long = middle
    return fits


class WholeBudget:
    """Leaves the chunk to the token budget: for schedulers without a step model."""

    def prefill_budget(self, step: DecodeLoad) -> int:
        """Return the whole budget."""
        return step.token_budget

    @property
    def effective_tokens(self) -> int:
        """Return that there is no bound."""
        return 0


class FittedChunks:
    """The chunk policy of the continuous scheduler."""

    def __init__(self, model: StepModel, itl_slo_seconds: Callable[[], FloatArray]) -> None:
        self._model = model
        self._itl_slo_seconds = itl_slo_seconds
        self._last_decode_seconds = 0.0
        self._last_budget = 0

    @property
    def effective_tokens(self) -> int:
        """Return the budget of the last step that had decodes: the effective batch size in tokens."""
        return self._last_budget

    def note_step(self, features: StepFeatures, seconds: float) -> None:
        """Remember how long a step without chunks took."""
        if not features.has_chunk:
            self._last_decode_seconds = seconds

    def prefill_budget(self, step: DecodeLoad) -> int:
        """Return the most prompt tokens for this step; all that is left where nobody decodes."""
        num_decodes = len(step.rows)
        if num_decodes == 0 or step.token_budget == 0 or not self._model.is_fitted:
            self._last_budget = num_decodes + step.token_budget
            return step.token_budget
        decodes = StepFeatures(num_decodes, float(step.context_tokens), 0.0, num_decodes)
        predict = self._model.predict_p90
        slos = self._itl_slo_seconds()[step.rows]
        tightest = float(np.min(slos))
        if not np.isfinite(tightest):
            predict = self._model.predict
            tightest = MAX_MIXED_RATIO * max(self._last_decode_seconds, predict(decodes))
        elif tightest < (alone := predict(decodes)):
            tightest = float(np.min(np.where(slos < alone, LOST_SLO_RATIO * alone, slos)))
        chunk = largest_chunk(
            predict,
            decodes,
            allowed_seconds=tightest,
            start=step.chunk_start,
            most=step.token_budget,
        )
        self._last_budget = num_decodes + chunk
        return chunk
