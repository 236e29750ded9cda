"""From logits to tokens, row by row independent: what a row gets does not depend on its neighbours.

Order: repetition, presence and frequency penalties, logit bias, end tokens barred before `min_tokens`; then
the largest logit for greedy rows, else temperature, min-p, top-k, top-p and one uniform number. Log
probabilities are those of the model's own logits, before any of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.messages import SamplingParams, TokenLogprobs
from tidemill_engine.runner.randomness import uniform

if TYPE_CHECKING:
    from tidemill_engine.step import IntArray

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
    def is_greedy(self) -> bool:
        """Say whether the largest logit wins."""
        return self.sampling.temperature < GREEDY_BELOW_TEMPERATURE


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One token per row; `is_valid` is False where the row's logits were not numbers."""

    token_ids: list[int]
    is_valid: list[bool]
    logprobs: dict[int, TokenLogprobs]


def sample(logits: torch.Tensor, rows: list[RowSampling]) -> Sampled:
    """Choose a token for each row; logits: `[num_rows, vocab_size]` float32, changed in place."""
    reports = {index: logits[index].clone() for index, row in enumerate(rows) if _wants_logprobs(row)}
    for index, row in enumerate(rows):
        _adjust(logits[index], row)
    largest, best = logits.max(dim=-1)
    is_valid: list[bool] = torch.isfinite(largest).tolist()
    token_ids: list[int] = best.tolist()
    for index, row in enumerate(rows):
        if is_valid[index] and not row.is_greedy:
            token_ids[index] = _draw(logits[index], row)
    logprobs = {
        index: _logprobs(raw, token_ids[index], rows[index].sampling.num_logprobs or 0)
        for index, raw in reports.items()
        if is_valid[index]
    }
    return Sampled(token_ids=token_ids, is_valid=is_valid, logprobs=logprobs)


def _wants_logprobs(row: RowSampling) -> bool:
    """Say whether log probabilities were asked for."""
    return row.sampling.num_logprobs is not None


def _adjust(logits: torch.Tensor, row: RowSampling) -> None:
    """Apply penalties, bias and barred end tokens to one row: `[vocab_size]`."""
    params = row.sampling
    if params.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(row.token_ids)).long()
        values = logits[seen]
        logits[seen] = torch.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if params.presence_penalty or params.frequency_penalty:
        said, counts = np.unique(row.token_ids[row.num_prompt_tokens :], return_counts=True)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        logits[torch.from_numpy(said).long()] -= torch.from_numpy(penalties).float()
    if params.logit_bias:
        biased = torch.tensor(list(params.logit_bias))
        logits[biased] += torch.tensor(list(params.logit_bias.values()))
    if row.num_outputs + 1 < params.min_tokens and row.end_token_ids:
        logits[torch.tensor(row.end_token_ids)] = float("-inf")


def _draw(logits: torch.Tensor, row: RowSampling) -> int:
    """Draw from one row's distribution: `[vocab_size]`."""
    params = row.sampling
    probabilities = torch.softmax(logits / params.temperature, dim=-1)
    if params.min_p > 0:
        probabilities[probabilities < params.min_p * probabilities.max()] = 0.0
    number = uniform(row.seed, row.num_outputs, row.sibling)
    if params.top_k == 0 and params.top_p >= 1:
        return _at(probabilities, number)
    values, token_ids = _nucleus(probabilities, params.top_k, params.top_p)
    return int(token_ids[_at(values, number)])


def _nucleus(probabilities: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the likeliest tokens, descending: at most top_k, and the fewest that hold top_p of their mass.

    Sorting a whole vocabulary is slow; where the likeliest thousand hold enough, they are all that is sorted.
    """
    if 0 < top_k < len(probabilities):
        values, token_ids = probabilities.topk(top_k)
        total = float(values.sum())
    else:
        total = float(probabilities.sum())
        values, token_ids = probabilities.topk(min(_NUCLEUS_CANDIDATES, len(probabilities)))
        if float(values.sum()) < top_p * total:
            values, token_ids = probabilities.sort(descending=True)
    if top_p >= 1:
        return values, token_ids
    count = int(torch.searchsorted(values.cumsum(dim=0), top_p * total)) + 1
    return values[:count], token_ids[:count]


def _at(weights: torch.Tensor, number: float) -> int:
    """Return the place where the running sum of the weights passes `number` of their total."""
    mass = weights.double().cumsum(dim=0)
    place = int(torch.searchsorted(mass, number * float(mass[-1]), right=True))
    return min(place, len(weights) - 1)


def _logprobs(logits: torch.Tensor, token_id: int, count: int) -> TokenLogprobs:
    """Return the chosen token's log probability, then the largest ones."""
    logprobs = torch.log_softmax(logits, dim=-1)
    values, token_ids = logprobs.topk(min(count, len(logprobs)))
    return TokenLogprobs(
        token_ids=[token_id, *token_ids.tolist()],
        logprobs=[float(logprobs[token_id]), *values.tolist()],
    )
