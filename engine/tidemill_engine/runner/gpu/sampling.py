"""From logits to tokens on the device: penalties and bias for the rows that ask, then one kernel for all.

The host does not wait for the device here. The same order as `runner.sampler`: penalties, bias and barred end
tokens, then the draw; log probabilities are those of the model's own logits. Chance is a function of seed,
sibling and position, but not the same numbers as on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_kernels.sampler import Drawing
from tidemill_kernels.sampler.triton_kernel import sample

if TYPE_CHECKING:
    from tidemill_engine.messages import SamplingParams
    from tidemill_engine.runner.gpu.device import Device
    from tidemill_engine.runner.gpu.rows import DeviceRows
    from tidemill_engine.step import IntArray


@dataclass(frozen=True, kw_only=True)
class RowSpecials:
    """What of a row's sampling is not in the device's columns; `end_token_ids` are barred at first."""

    sampling: SamplingParams
    num_prompt_tokens: int
    end_token_ids: tuple[int, ...]

    @property
    def is_adjusting(self) -> bool:
        """Say whether logits are changed before the draw, at some position."""
        params = self.sampling
        return bool(
            params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
            or params.logit_bias
            or params.min_tokens > 1
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Tokens `[n]` int64, -1 without numbers; log probabilities of those rows that asked, in their order.

    likely_ids, likely_logprobs: `[num_asking, 1 + most]`, the chosen token first.
    """

    token_ids: torch.Tensor
    likely_ids: torch.Tensor | None = None
    likely_logprobs: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Who is sampled in a step: `[n]` on the host and the same on the device.

    lengths: tokens of each row before the one that is chosen. specials: by place among the n.
    """

    rows: IntArray
    lengths: IntArray
    specials: dict[int, RowSpecials]
    device_rows: torch.Tensor
    output_positions: torch.Tensor

    @property
    def asking(self) -> list[int]:
        """Return the places of rows that want log probabilities."""
        return [place for place, row in self.specials.items() if row.sampling.num_logprobs is not None]


def choose(logits: torch.Tensor, sampling: Sampling, tables: DeviceRows, device: Device) -> Choice:
    """Choose a token for each row; logits: `[n, vocab_size]`, not changed."""
    adjusting = [place for place, row in sampling.specials.items() if row.is_adjusting]
    drawn = adjusted(logits, adjusting, sampling, tables, device) if adjusting else logits
    rows = sampling.device_rows.long()
    columns = tables.columns
    token_ids, _, _ = sample(
        drawn,
        Drawing(
            temperature=columns.temperature[rows],
            top_k=columns.top_k[rows],
            top_p=columns.top_p[rows],
            min_p=columns.min_p[rows],
            seed=columns.seed[rows],
            position=sampling.output_positions,
        ),
    )
    asking = sampling.asking
    if not asking:
        return Choice(token_ids=token_ids)
    most = max(sampling.specials[place].sampling.num_logprobs or 0 for place in asking)
    places = device.send(torch.tensor(asking))
    logprobs = torch.log_softmax(logits[places].float(), dim=-1)
    chosen = token_ids[places].clamp(min=0).unsqueeze(1)
    best = logprobs.topk(min(most, logprobs.shape[1]), dim=-1)
    return Choice(
        token_ids=token_ids,
        likely_ids=torch.cat([chosen, best.indices], dim=1),
        likely_logprobs=torch.cat([logprobs.gather(1, chosen), best.values], dim=1),
    )


def adjusted(
    logits: torch.Tensor, places: list[int], sampling: Sampling, tables: DeviceRows, device: Device
) -> torch.Tensor:
    """Return logits in float32, with penalties, bias and barred end tokens applied to some rows."""
    changed = logits.to(torch.float32, copy=True)
    prompt_lengths = [sampling.specials[place].num_prompt_tokens for place in places]
    where, rows, lengths, prompts = device.send(
        torch.tensor(
            [places, sampling.rows[places].tolist(), sampling.lengths[places].tolist(), prompt_lengths]
        )
    )
    longest = int(sampling.lengths[places].max())
    positions = torch.arange(longest, device=logits.device)
    tokens = tables.token_pool[rows, :longest].long()
    is_there = positions < lengths[:, None]
    counts = _counted(tokens, is_there, changed.shape[1])
    said = _counted(tokens, is_there & (positions >= prompts[:, None]), changed.shape[1])
    columns = tables.columns
    values, repetition = changed[where], columns.repetition[rows][:, None]
    penalised = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(counts > 0, penalised, values)
    values -= columns.presence[rows][:, None] * (said > 0) + columns.frequency[rows][:, None] * said
    _bias_and_bar(values, places, sampling, device)
    return changed.index_copy_(0, where, values)


def _counted(tokens: torch.Tensor, is_counted: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Count each row's tokens `[k, n]` where they count: `[k, vocab_size]` float32."""
    counts = torch.zeros((len(tokens), vocab_size), dtype=torch.float32, device=tokens.device)
    return counts.scatter_add_(1, tokens, is_counted.float())


def _bias_and_bar(values: torch.Tensor, places: list[int], sampling: Sampling, device: Device) -> None:
    """Add biases and bar end tokens, in place; values: `[k, vocab_size]` of the rows at `places`."""
    biased: list[tuple[int, int, float]] = []
    for index, place in enumerate(places):
        special = sampling.specials[place]
        biased += [(index, token, bias) for token, bias in special.sampling.logit_bias.items()]
        num_outputs = int(sampling.lengths[place]) - special.num_prompt_tokens
        if num_outputs + 1 < special.sampling.min_tokens:
            biased += [(index, token, -np.inf) for token in special.end_token_ids]
    if biased:
        rows, tokens, amounts = (device.send(torch.tensor(column)) for column in zip(*biased, strict=True))
        values.index_put_((rows, tokens), amounts.float(), accumulate=True)
