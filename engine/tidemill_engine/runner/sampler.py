"""From logits to tokens, row by row independent: what a row gets does not depend on its neighbours.

Order: repetition, presence and frequency penalties, logit bias, end tokens barred before `min_tokens`; then
the largest logit for greedy rows, else temperature, min-p, top-k, top-p and one uniform number. Log
probabilities are those of the model's own logits, before any of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidemill_engine.messages import SamplingParams, TokenLogprobs
from tidemill_engine.runner.randomness import uniform

if TYPE_CHECKING:
    from tidemill_engine.step import IntArray

Floats = npt.NDArray[np.float32]
DrawAll = Callable[[Floats, list[int], "list[RowSampling]"], list[int]]
"""Draws a token for each row, whose logits are those of the place given with it."""

GREEDY_BELOW_TEMPERATURE = 1e-5
_NUCLEUS_CANDIDATES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSampling:
    """How one row's next token is chosen: parameters, tokens so far, and what chance hangs on."""

    sampling: SamplingParams
    token_ids: IntArray
    num_prompt_tokens: int
    seed: int
    sibling: int
    end_token_ids: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        """Return the output position that is chosen now."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def number(self) -> float:
        """Return this position's uniform random number."""
        return uniform(self.seed, self.num_outputs, self.sibling)

    @property
    def is_greedy(self) -> bool:
        """Say whether the largest logit wins."""
        return self.sampling.temperature < GREEDY_BELOW_TEMPERATURE


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One token per row; `is_valid` is False where the row's logits were not numbers."""

    token_ids: list[int]
    is_valid: list[bool]
    logprobs: dict[int, TokenLogprobs]


def sample(
    logits: Floats, rows: list[RowSampling], places: list[int] | None = None, draw_all: DrawAll | None = None
) -> Sampled:
    """Choose a token for each row; logits: `[num_places, vocab_size]`, changed in place.

    Row i's logits are `logits[places[i]]`, or `logits[i]`. Who has a faster way to draw brings it.
    """
    places = list(range(len(rows))) if places is None else places
    reports = {index: logits[places[index]].copy() for index, row in enumerate(rows) if _wants_logprobs(row)}
    for place, row in zip(places, rows, strict=True):
        _adjust(logits[place], row)
    token_ids = [int(logits[place].argmax()) for place in places]
    is_valid = [
        bool(np.isfinite(logits[place, token])) for place, token in zip(places, token_ids, strict=True)
    ]
    drawn = [index for index, row in enumerate(rows) if is_valid[index] and not row.is_greedy]
    tokens = (draw_all or draw_each)(
        logits, [places[index] for index in drawn], [rows[index] for index in drawn]
    )
    for index, token in zip(drawn, tokens, strict=True):
        token_ids[index] = token
    logprobs = {
        index: _logprobs(raw, token_ids[index], rows[index].sampling.num_logprobs or 0)
        for index, raw in reports.items()
        if is_valid[index]
    }
    return Sampled(token_ids=token_ids, is_valid=is_valid, logprobs=logprobs)


def draw_each(logits: Floats, places: list[int], rows: list[RowSampling]) -> list[int]:
    """Draw row by row, in numpy."""
    return [_draw(logits[place], row) for place, row in zip(places, rows, strict=True)]


def is_plain(params: SamplingParams) -> bool:
    """Say whether the largest logit is all that these parameters ask for, at every position."""
    return (
        params.temperature < GREEDY_BELOW_TEMPERATURE
        and params.num_logprobs is None
        and params.repetition_penalty == 1.0
        and not (params.presence_penalty or params.frequency_penalty or params.logit_bias)
        and params.min_tokens <= 1
    )


def _wants_logprobs(row: RowSampling) -> bool:
    """Say whether log probabilities were asked for."""
    return row.sampling.num_logprobs is not None


def _adjust(logits: Floats, row: RowSampling) -> None:
    """Apply penalties, bias and barred end tokens to one row: `[vocab_size]`."""
    params = row.sampling
    if params.repetition_penalty != 1.0:
        seen = np.unique(row.token_ids)
        values = logits[seen]
        logits[seen] = np.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if params.presence_penalty or params.frequency_penalty:
        said, counts = np.unique(row.token_ids[row.num_prompt_tokens :], return_counts=True)
        logits[said] -= params.presence_penalty + params.frequency_penalty * counts
    if params.logit_bias:
        logits[list(params.logit_bias)] += list(params.logit_bias.values())
    if row.num_outputs + 1 < params.min_tokens and row.end_token_ids:
        logits[list(row.end_token_ids)] = float("-inf")


def _draw(logits: Floats, row: RowSampling) -> int:
    """Draw from one row's distribution: `[vocab_size]`."""
    params = row.sampling
    weights = np.exp((logits - logits.max()) / np.float32(params.temperature))
    if params.min_p > 0:
        weights[weights < params.min_p] = 0.0
    number = row.number
    if params.top_k == 0 and params.top_p >= 1:
        return _at(weights, number)
    values, token_ids = _nucleus(weights, params.top_k, params.top_p)
    return int(token_ids[_at(values, number)])


def _nucleus(weights: Floats, top_k: int, top_p: float) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the likeliest tokens, descending: at most top_k, and the fewest that hold top_p of their mass.

    Sorting a whole vocabulary is slow; where the likeliest thousand hold enough, they are all that is sorted.
    """
    if 0 < top_k < len(weights):
        values, token_ids = _largest(weights, top_k)
        total = float(values.sum())
    else:
        total = float(weights.sum())
        values, token_ids = _largest(weights, min(_NUCLEUS_CANDIDATES, len(weights)))
        if float(values.sum()) < top_p * total:
            values, token_ids = _largest(weights, len(weights))
    if top_p >= 1:
        return values, token_ids
    count = int(np.searchsorted(values.cumsum(dtype=np.float64), top_p * total)) + 1
    return values[:count], token_ids[:count]


def _largest(values: Floats, count: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the largest values, descending, and where they are; of equals the first."""
    places = np.arange(len(values)) if count >= len(values) else np.argpartition(-values, count - 1)[:count]
    order = places[np.lexsort((places, -values[places]))]
    return values[order], order


def _at(weights: Floats, number: float) -> int:
    """Return the place where the running sum of the weights passes `number` of their total."""
    mass = weights.cumsum(dtype=np.float64)
    place = int(np.searchsorted(mass, number * mass[-1], side="right"))
    return min(place, len(weights) - 1)


def _logprobs(logits: Floats, token_id: int, count: int) -> TokenLogprobs:
    """Return the chosen token's log probability, then the largest ones."""
    most = logits.max()
    logprobs = logits - (most + np.log(np.exp(logits - most).sum()))
    values, token_ids = _largest(logprobs, min(count, len(logprobs)))
    return TokenLogprobs(
        token_ids=[token_id, *token_ids.tolist()],
        logprobs=[float(logprobs[token_id]), *values.tolist()],
    )
