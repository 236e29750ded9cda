"""How full a replica may be so that chance alone makes no more requests late than are allowed. Pure.

Knows one queue, M/G/1: prompts come at random and are computed one after another, in the order in which they
came. A wait longer than t has about the probability busy x exp(-t / mean wait of those that wait); a prompt
is late when its wait and its own computation take longer together than is promised. Lengths are log-normal.
"""

from __future__ import annotations

import math
from statistics import NormalDist

NUM_LENGTHS = 20
"""Prompts of so many lengths, each as likely as the others, stand for all."""
FULLEST = 0.99
HALVINGS = 20


def busy_share(mean_seconds: float, spread: float, promised_seconds: float, late_share: float) -> float:
    """Return the largest share of its time that a replica may compute prompts; 0 where none is in reach.

    `mean_seconds` is what a prompt takes, `spread` the standard deviation over the mean; `late_share` of them
    may wait for their first token longer than promised.
    """
    variance = math.log1p(spread * spread)
    median, sigma = mean_seconds * math.exp(-variance / 2), math.sqrt(variance)
    places = [(i + 0.5) / NUM_LENGTHS for i in range(NUM_LENGTHS)]
    spare = [promised_seconds - median * math.exp(sigma * NormalDist().inv_cdf(p)) for p in places]
    low, high = 0.0, FULLEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        wait = mean_seconds * (1.0 + spread * spread) / 2 / (1.0 - middle)
        late = sum(middle * math.exp(-left / wait) if left > 0 else 1.0 for left in spare) / NUM_LENGTHS
        low, high = (middle, high) if late <= late_share else (low, middle)
    return low
