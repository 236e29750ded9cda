"""The oracle: sort, cut, and walk the cumulative sum to a given uniform number, in float64."""

from __future__ import annotations

import torch

from tidemill_kernels.sampler import Drawing


def allowed_reference(logits: torch.Tensor, drawing: Drawing, row: int) -> torch.Tensor:
    """Return which tokens of a row may be drawn, `[vocab_size]` bool; what ties with the last too."""
    wide = logits[row].double()
    weights = torch.exp((wide - wide.max()) / float(drawing.temperature[row]))
    allowed = weights >= float(drawing.min_p[row])
    weights = weights * allowed
    top_k = int(drawing.top_k[row])
    if top_k > 0:
        allowed &= weights >= weights.topk(min(top_k, weights.numel())).values[-1]
        weights = weights * allowed
    top_p = float(drawing.top_p[row])
    if top_p < 1:
        ordered = weights.sort(descending=True).values
        before = ordered.cumsum(0) - ordered
        least = ordered[before < top_p * ordered.sum()][-1]
        allowed &= weights >= least
    return allowed


def sample_reference(
    logits: torch.Tensor, drawing: Drawing, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens `[num_rows]` and the log probabilities of the model's own logits, for given uniforms."""
    tokens = []
    for row in range(logits.shape[0]):
        if float(drawing.temperature[row]) == 0:
            tokens.append(int(logits[row].argmax()))
            continue
        wide = logits[row].double()
        weights = torch.exp((wide - wide.max()) / float(drawing.temperature[row]))
        cumulative = (weights * allowed_reference(logits, drawing, row)).cumsum(0)
        tokens.append(int(torch.searchsorted(cumulative, float(uniforms[row]) * cumulative[-1], right=True)))
    chosen = torch.tensor(tokens)
    logprobs = torch.log_softmax(logits.double(), dim=-1).gather(1, chosen[:, None])[:, 0]
    return chosen, logprobs.float()
