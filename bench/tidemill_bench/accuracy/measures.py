"""Compares the logits of one format with those of another. Pure arithmetic on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How a format does on a text: alone (perplexity) and against the reference (the rest)."""

    name: str
    perplexity: float
    greedy_agreement: float
    mean_logit_difference: float

    def as_json(self) -> dict[str, float]:
        """Return the figures by name."""
        return {
            "perplexity": self.perplexity,
            "greedy_agreement": self.greedy_agreement,
            "mean_logit_difference": self.mean_logit_difference,
        }


def perplexity(logits: Logits, token_ids: list[int]) -> float:
    """Return e to the mean negative log probability of each token after the first."""
    wide = logits[: len(token_ids) - 1].astype(np.float64)
    most = wide.max(axis=1, keepdims=True)
    logprobs = wide - most - np.log(np.exp(wide - most).sum(axis=1, keepdims=True))
    chosen = np.take_along_axis(logprobs, np.array(token_ids[1:])[:, None], axis=1)
    return float(np.exp(-chosen.mean()))


def compare(name: str, logits: Logits, reference: Logits, token_ids: list[int]) -> Accuracy:
    """Measure logits `[num_tokens, vocab_size]`, which were computed after each token of the text."""
    return Accuracy(
        name=name,
        perplexity=perplexity(logits, token_ids),
        greedy_agreement=float((logits.argmax(axis=1) == reference.argmax(axis=1)).mean()),
        mean_logit_difference=float(np.abs(logits - reference).mean()),
    )
