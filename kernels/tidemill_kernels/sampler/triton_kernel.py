"""Sampling without sorting: thresholds are found by bisection over the bits of a float, which is exact.

Floats are mapped to integers in their own order; 32 halvings find the k-th largest logit, or the least logit
of the smallest set that holds top_p of the mass. Tokens that tie with the last one are kept, all of them.
A row's token depends on its own logits, seed and position only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tidemill_kernels.sampler import Drawing

_BLOCK = 2048


@triton.jit
def sample_kernel(
    logits_ptr,
    token_ptr,
    logprob_ptr,
    uniform_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    position_ptr,
    stride_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Draw one row's token per program."""
    row = tl.program_id(0).to(tl.int64)
    start = logits_ptr + row * stride_row
    lanes = tl.arange(0, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    uniform = tl.rand(tl.load(seed_ptr + row), tl.load(position_ptr + row))
    tl.store(uniform_ptr + row, uniform)
    largest, best, num_bad = _largest_of(start, vocab_size, lanes, BLOCK)
    is_number = (num_bad == 0) & (largest > float("-inf")) & (largest < float("inf"))
    if is_number:
        mass = _mass_of(start, vocab_size, largest, lanes, BLOCK)
        token = best
        if temperature > 0:
            token = _draw(
                start,
                vocab_size,
                best,
                largest,
                temperature,
                tl.load(top_k_ptr + row),
                tl.load(top_p_ptr + row),
                tl.load(min_p_ptr + row),
                uniform,
                BLOCK,
            )
        chosen = tl.load(start + token).to(tl.float32)
        tl.store(logprob_ptr + row, chosen - largest - tl.log(mass))
        tl.store(token_ptr + row, token.to(tl.int64))
    else:
        tl.store(logprob_ptr + row, float("-inf"))
        tl.store(token_ptr + row, tl.full([], -1, tl.int64))


@triton.jit
def _logits_of(start, block, vocab_size, lanes):
    """Load the block of a row that begins at `block`, as float32, -inf beyond its end; and what is inside."""
    inside = block + lanes < vocab_size
    logits = tl.load(start + block + lanes, mask=inside, other=float("-inf")).to(tl.float32)
    return logits, inside


@triton.jit
def _largest_of(start, vocab_size, lanes, BLOCK: tl.constexpr):
    """Find the largest logit that is a number, its token, and how many are none."""
    largest = tl.full([], float("-inf"), tl.float32)
    best = tl.full([], 0, tl.int32)
    num_bad = tl.full([], 0, tl.int32)
    for block in range(0, vocab_size, BLOCK):
        logits, _ = _logits_of(start, block, vocab_size, lanes)
        is_bad = logits != logits
        num_bad += tl.sum(is_bad.to(tl.int32), axis=0)
        logits = tl.where(is_bad, float("-inf"), logits)
        block_largest = tl.max(logits, axis=0)
        block_best = block + tl.argmax(logits, axis=0).to(tl.int32)
        best = tl.where(block_largest > largest, block_best, best)
        largest = tl.maximum(largest, block_largest)
    return largest, best, num_bad


@triton.jit
def _mass_of(start, vocab_size, largest, lanes, BLOCK: tl.constexpr):
    """Sum the weights of all logits, before temperature."""
    mass = tl.full([], 0.0, tl.float32)
    for block in range(0, vocab_size, BLOCK):
        logits, _ = _logits_of(start, block, vocab_size, lanes)
        mass += tl.sum(tl.exp(logits - largest), axis=0)
    return mass


@triton.jit
def _draw(start, vocab_size, best, largest, temperature, top_k, top_p, min_p, uniform, BLOCK: tl.constexpr):
    """Find the least allowed logit, each limit raising it, then the token at `uniform` of the mass."""
    lanes = tl.arange(0, BLOCK)
    least = tl.full([], -2147483648, tl.int64)
    if min_p > 0:
        least = _ordered(largest + tl.log(min_p) * temperature)
    if (top_k > 0) & (top_k < vocab_size):
        least = _least_of_top_k(start, vocab_size, least, _ordered(largest), top_k, BLOCK)
    total = _mass_from(start, vocab_size, least, largest, temperature, BLOCK)
    if top_p < 1:
        low = least
        high = _ordered(largest)
        while low < high:
            middle = low + (high - low + 1) // 2
            if _mass_from(start, vocab_size, middle, largest, temperature, BLOCK) >= top_p * total:
                low = middle
            else:
                high = middle - 1
        least = low
        total = _mass_from(start, vocab_size, least, largest, temperature, BLOCK)
    passed = tl.full([], 0.0, tl.float32)
    token = tl.full([], -1, tl.int32)
    for block in range(0, vocab_size, BLOCK):
        logits, inside = _logits_of(start, block, vocab_size, lanes)
        is_allowed = inside & (_ordered(logits) >= least)
        weights = tl.where(is_allowed, tl.exp((logits - largest) / temperature), 0.0)
        reached = passed + tl.cumsum(weights, axis=0)
        hit = tl.min(tl.where(is_allowed & (reached > uniform * total), lanes, BLOCK), axis=0)
        token = tl.where((token < 0) & (hit < BLOCK), block + hit, token)
        passed += tl.sum(weights, axis=0)
    # Rounding may leave the number just beyond the last weight.
    return tl.where(token < 0, best, token)


@triton.jit
def _least_of_top_k(start, vocab_size, low, high, top_k, BLOCK: tl.constexpr):
    """Return the largest ordered logit that at least top_k logits reach, between low and high."""
    lanes = tl.arange(0, BLOCK)
    while low < high:
        middle = low + (high - low + 1) // 2
        count = tl.full([], 0, tl.int32)
        for block in range(0, vocab_size, BLOCK):
            logits, inside = _logits_of(start, block, vocab_size, lanes)
            count += tl.sum(((_ordered(logits) >= middle) & inside).to(tl.int32), axis=0)
        if count >= top_k:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _ordered(values):
    """Map floats to integers that compare as they do."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def _mass_from(start, vocab_size, least, largest, temperature, BLOCK: tl.constexpr):
    """Sum the weights of the logits that are at least `least`."""
    lanes = tl.arange(0, BLOCK)
    mass = tl.full([], 0.0, tl.float32)
    for block in range(0, vocab_size, BLOCK):
        logits, inside = _logits_of(start, block, vocab_size, lanes)
        is_held = inside & (_ordered(logits) >= least)
        mass += tl.sum(tl.where(is_held, tl.exp((logits - largest) / temperature), 0.0), axis=0)
    return mass


def sample(logits: torch.Tensor, drawing: Drawing) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, log probabilities and the uniform numbers used, each `[num_rows]`.

    logits: `[num_rows, vocab_size]` with contiguous rows, in any float dtype. A row whose logits are not
    numbers gets token -1. Log probabilities are of the logits as they are, before temperature.
    """
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    uniforms = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows == 0:
        return tokens, logprobs, uniforms
    block = min(_BLOCK, triton.next_power_of_2(vocab_size))
    sample_kernel[(num_rows,)](
        logits,
        tokens,
        logprobs,
        uniforms,
        drawing.temperature,
        drawing.top_k,
        drawing.top_p,
        drawing.min_p,
        drawing.seed,
        drawing.position,
        logits.stride(0),
        vocab_size,
        BLOCK=block,
        num_warps=8,
    )
    return tokens, logprobs, uniforms
