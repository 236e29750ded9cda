"""How many prompt tokens join a step's decodes: as many as the running requests' inter-token SLOs allow.

Knows the step model, the SLO of each row, the last pure-decode step and how many wait. Does not know blocks
or prompts. An SLO is kept by nine of ten steps; where there is none, the prompts of a step are sized by what
is expected, and the more of them the more requests wait: see `mixed_ratio` and `max_mixed_tokens`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.scheduler.step_model import StepFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_engine.scheduler.base import DecodeLoad
    from tidemill_engine.scheduler.step_model import StepModel
    from tidemill_engine.step import FloatArray

MIN_CHUNK_TOKENS = 32
LONE_PROMPT_RATIO = 4.0
"""Where one request waits and no SLO says otherwise, its prompt may take so many times a pure-decode step.

At 2 a burst's last prompts waited a tenth to a quarter longer than at 4, for gaps that were a quarter to a
half shorter.
"""
MIXED_CHUNKS = 2
"""Prompts may take so many times the longest chunk beside at least half as many decodes as requests wait."""
LOST_SLO_RATIO = 1.5
"""An SLO that a step without a chunk does not keep either is missed by as much again with one, and by no more
than so many times such a step.

Otherwise a wish for the impossible would slow down everybody's prompts and help nobody. The closer it is to
what is possible, the less is added: a step that now keeps it and now does not keeps its length.
"""


def mixed_ratio(num_waiting: int) -> float:
    """Return how many times a pure-decode step a step with prompts may take where no SLO bounds it.

    Work a of prompts, done u at a time, takes a / u steps. Each of these has decodes too, of D together, so
    all of the W that wait lose W * D * a / u; the longest gap of those that run is D + u. The sum of both is
    least where u grows as the square root of W. (That all W wait for the same a, not each for its own, keeps
    a crowd's gaps short; weighing gaps by those that run lets ten streams starve a hundred newcomers.)
    """
    return 1.0 + LONE_PROMPT_RATIO * math.sqrt(max(1, num_waiting))


def max_mixed_tokens(num_waiting: int, num_decodes: int, max_chunk_tokens: int) -> int:
    """Return the most prompt tokens beside decodes where no SLO bounds them, as a multiple of a chunk.

    A step's work on prompts is the same whenever it is done. In longer steps fewer decodes come between, but
    what a step gains by that falls with its length, and the gap of everyone who runs grows with it. So where
    most requests run two chunks are the end; where nearly all wait, few are held up.
    """
    return max_chunk_tokens * max(MIXED_CHUNKS, num_waiting // max(1, num_decodes))


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

    def __init__(
        self, model: StepModel, itl_slo_seconds: Callable[[], FloatArray], *, max_chunk_tokens: int
    ) -> None:
        self._model = model
        self._max_chunk_tokens = max_chunk_tokens
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
        """Return the most prompt tokens for this step; all that is left where nobody decodes.

        Beside decodes it is one chunk while nobody knows what that takes.
        """
        num_decodes = len(step.rows)
        if num_decodes == 0 or step.token_budget == 0:
            self._last_budget = num_decodes + step.token_budget
            return step.token_budget
        if not self._model.is_fitted:
            chunk = min(step.token_budget, self._max_chunk_tokens)
            self._last_budget = num_decodes + chunk
            return chunk
        slos = self._itl_slo_seconds()[step.rows]
        has_slo = np.isfinite(slos)
        chunk = step.token_budget
        if has_slo.any():
            chunk = self._within_slos(step, slos)
        if not has_slo.all():  # one's generous wish loosens nothing for those who have none
            chunk = min(chunk, self._within_rules(step))
        self._last_budget = num_decodes + chunk
        return chunk

    def _within_slos(self, step: DecodeLoad, slos: FloatArray) -> int:
        """Return the longest chunk with which nine of ten steps keep the tightest SLO."""
        decodes, tightest = _decodes_of(step), float(np.min(slos))
        if tightest < (alone := self._model.predict_p90(decodes)):
            missed = np.minimum(2.0 * alone - slos, LOST_SLO_RATIO * alone)
            tightest = float(np.min(np.where(slos < alone, missed, slos)))
        return largest_chunk(
            self._model.predict_p90,
            decodes,
            allowed_seconds=tightest,
            start=step.chunk_start,
            most=step.token_budget,
        )

    def _within_rules(self, step: DecodeLoad) -> int:
        """Return the longest chunk by the rules for those who have no SLO.

        Work that is cut holds up those who join on the way, each for the rest of it, and who ran before for
        all of it. So where these are few and one step ends it, a crowd's first prompt having come just before
        the others, say, it is not cut: else the crowd would hold itself up.
        """
        if step.ends_all_prompts:
            return step.token_budget
        decodes, predict = _decodes_of(step), self._model.predict
        alone = max(self._last_decode_seconds, predict(decodes))
        most = max_mixed_tokens(step.num_waiting, len(step.rows), self._max_chunk_tokens)
        return largest_chunk(
            predict,
            decodes,
            allowed_seconds=mixed_ratio(step.num_waiting) * alone,
            start=step.chunk_start,
            most=min(step.token_budget, most),
        )


def _decodes_of(step: DecodeLoad) -> StepFeatures:
    """Return what the step's decodes are without chunks."""
    num_decodes = len(step.rows)
    return StepFeatures(num_decodes, float(step.context_tokens), 0.0, num_decodes)
