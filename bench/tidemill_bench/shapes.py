"""Requests of simulated and in-process loads: lengths, arrival, tenant and SLO; tokens only when asked for.

Pure: values and arithmetic. The same seed gives the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

FIRST_TOKEN_ID = 300
NUM_TOKEN_IDS = 30_000
PREFIX_BLOCK_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class SimRequest:
    """One request. `prefix_ids` names its leading 512-token blocks: equal ids mean equal tokens."""

    arrival_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    tenant: str = ""
    priority: int = 0
    slo_ttft_seconds: float | None = None
    slo_itl_seconds: float | None = None
    prefix_ids: tuple[int, ...] = ()
    salt: int = 0

    def prompt_token_ids(self, index: int) -> list[int]:
        """Return the prompt: its own tokens, after those that its prefix ids stand for."""
        pieces = [_tokens(1 + block_id, PREFIX_BLOCK_TOKENS) for block_id in self.prefix_ids]
        num_known = sum(len(piece) for piece in pieces)
        if num_known < self.num_prompt_tokens:
            own_seed = (1 << 32) + self.salt * 1_000_003 + index
            pieces.append(_tokens(own_seed, self.num_prompt_tokens - num_known))
        joined: list[int] = np.concatenate(pieces)[: self.num_prompt_tokens].tolist()
        return joined


def _tokens(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return tokens that differ early for different seeds; a cheap mix, since nothing reads their sense."""
    mixed = (seed * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFF
    start, stride = mixed % NUM_TOKEN_IDS, 1 + (mixed >> 17) % 997
    tokens = FIRST_TOKEN_ID + (start + stride * np.arange(count, dtype=np.int64)) % NUM_TOKEN_IDS
    tokens[: min(count, 3)] = (
        FIRST_TOKEN_ID + np.array([mixed >> 8, mixed >> 20, seed])[:count] % NUM_TOKEN_IDS
    )
    return tokens


@dataclass(frozen=True, kw_only=True)
class LengthShape:
    """Ranges of prompt and output lengths in tokens, both ends included."""

    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    is_log_uniform: bool = False

    def divided_by(self, divisor: int) -> LengthShape:
        """Return the shape with every length divided, at least 1."""
        return replace(
            self,
            prompt_tokens=(max(1, self.prompt_tokens[0] // divisor), self.prompt_tokens[1] // divisor),
            output_tokens=(max(1, self.output_tokens[0] // divisor), self.output_tokens[1] // divisor),
        )


SHAPES = {
    "alike": LengthShape(prompt_tokens=(128, 128), output_tokens=(64, 64)),
    "medium": LengthShape(prompt_tokens=(100, 500), output_tokens=(50, 200)),
    "extreme": LengthShape(prompt_tokens=(10, 4000), output_tokens=(10, 2000), is_log_uniform=True),
}


def draw_requests(shape: LengthShape, count: int, *, rate: float | None, seed: int) -> list[SimRequest]:
    """Draw requests that arrive by a Poisson process of so many a second; all at once where rate is None."""
    rng = np.random.default_rng(seed)
    prompts = _draw(rng, shape.prompt_tokens, count, is_log=shape.is_log_uniform)
    outputs = _draw(rng, shape.output_tokens, count, is_log=shape.is_log_uniform)
    gaps = rng.exponential(1.0, count)
    arrivals = np.zeros(count) if rate is None else np.cumsum(gaps) / rate
    return [
        SimRequest(
            arrival_seconds=float(arrival), num_prompt_tokens=prompt, num_output_tokens=output, salt=seed
        )
        for arrival, prompt, output in zip(arrivals, prompts, outputs, strict=True)
    ]


def _draw(rng: np.random.Generator, bounds: tuple[int, int], count: int, *, is_log: bool) -> list[int]:
    low, high = bounds
    if is_log:
        drawn = np.exp(rng.uniform(np.log(low), np.log(high), count))
        return [int(x) for x in np.clip(np.rint(drawn), low, high)]
    return [int(x) for x in rng.integers(low, high, count, endpoint=True)]
