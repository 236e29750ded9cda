"""How fast each pair of a head's numbers turns with the position: plain, evenly slower, or as in Llama 3.1.

Pure. Every kind of scaling that is computed here is a divisor for each frequency; what is not is refused by
name. Sources: "RoFormer" (arXiv 2104.09864) and the reference code of Llama 3.1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidemill_engine.errors import ModelLoadError

if TYPE_CHECKING:
    from tidemill_engine.models.config import LlamaConfig

FloatArray = npt.NDArray[np.float32]


def frequencies(config: LlamaConfig) -> FloatArray:
    """Return the radians by which each pair turns from one position to the next: `[head_dim / 2]`."""
    plain = plain_frequencies(config.head_dim, config.rope_theta)
    if not config.rope_divisors:
        return plain
    if len(config.rope_divisors) != len(plain):
        raise ModelLoadError(
            f"{len(config.rope_divisors)} scales of rotary embeddings do not fit heads of {config.head_dim}"
        )
    return (plain / np.array(config.rope_divisors, dtype=np.float32)).astype(np.float32)


def plain_frequencies(head_dim: int, theta: float) -> FloatArray:
    """Return the frequencies without scaling, in float32 as transformers computes them."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


def divisors_from_hf(rope: dict[str, Any], head_dim: int, theta: float) -> tuple[float, ...]:
    """Read `rope_parameters` or `rope_scaling` of a config.json; empty where nothing is scaled."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ()
    if kind == "linear":
        return (_positive(rope, "factor"),) * (head_dim // 2)
    if kind == "llama3":
        return llama3_divisors(
            plain_frequencies(head_dim, theta),
            factor=_positive(rope, "factor"),
            low=_positive(rope, "low_freq_factor"),
            high=_positive(rope, "high_freq_factor"),
            context=_positive(rope, "original_max_position_embeddings"),
        )
    raise ModelLoadError(
        f"rotary embeddings of type {kind!r} are not supported yet", reason="UnsupportedModel"
    )


def llama3_divisors(
    plain: FloatArray, *, factor: float, low: float, high: float, context: float
) -> tuple[float, ...]:
    """Return what Llama 3.1 divides each frequency by.

    Pairs that turn more than `high` times within the context that the model was first trained on stay as they
    are; those that turn less than `low` times go slower by `factor`; in between the frequencies, not the
    divisors, go over linearly in the number of turns.
    """
    if high <= low:
        raise ModelLoadError("high_freq_factor of the rotary embeddings must be above low_freq_factor")
    turns = context * plain.astype(np.float64) / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    kept = share + (1.0 - share) / factor
    return tuple((1.0 / kept).tolist())


def _positive(rope: dict[str, Any], key: str) -> float:
    """Return a number above 0, or an error that names the key."""
    value = rope.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelLoadError(f"{key} of the rotary embeddings must be a number above 0, not {value!r}")
    return float(value)
