"""The sampling that a model's makers recommend, used where a request does not say otherwise.

Knows `generation_config.json` of a model directory and the built-in models' cards. Refuses to fail a start: a
value that can't be used is left out and said in the log, since every request can still bring its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from tidemill_engine.api.protocol import SamplingDefaults
from tidemill_engine.model_uri import BuiltinModel, FileModel, ModelUri

logger = logging.getLogger(__name__)

_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 2.0),
}
_BUILTIN = {"smollm2-135m": SamplingDefaults(temperature=0.2, top_p=0.9)}
"""From the model cards: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct."""


def sampling_defaults(model: ModelUri) -> SamplingDefaults:
    """Return the model's recommended sampling; OpenAI's defaults where it recommends none."""
    if isinstance(model, BuiltinModel):
        return _BUILTIN.get(model.name, SamplingDefaults())
    if isinstance(model, FileModel) and model.path.is_dir():
        return _from_file(model.path / "generation_config.json")
    return SamplingDefaults()


def _from_file(path: Path) -> SamplingDefaults:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("%s can't be read and is left aside: %s", path.name, error)
        return SamplingDefaults()
    if not isinstance(found, dict):
        logger.warning("%s is no JSON object and is left aside", path.name)
        return SamplingDefaults()
    usable = {name: found[name] for name in _RANGES if name in found and _is_usable(name, found[name])}
    top_k = found.get("top_k")
    if isinstance(top_k, int) and top_k >= 0:
        usable["top_k"] = top_k
    defaults = SamplingDefaults(**usable)
    logger.info("requests that say nothing else are sampled with %s", defaults)
    return defaults


def _is_usable(name: str, value: Any) -> bool:
    low, high = _RANGES[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and low <= value <= high:
        return True
    logger.warning(
        "generation_config.json: %s %r is left out: it must be from %g to %g", name, value, low, high
    )
    return False
