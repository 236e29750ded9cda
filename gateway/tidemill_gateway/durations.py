"""Durations as InferenceServices write them, for example 1h30m or 500ms."""

import re
from typing import Final

WHOLE: Final = re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")
PART: Final = re.compile(r"([0-9]+)(ms|h|m|s)")
SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_seconds(text: object) -> float:
    """Read a duration; raise ValueError when it is none."""
    if not isinstance(text, str) or not WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is no duration")
    return sum(int(amount) * SECONDS[unit] for amount, unit in PART.findall(text))
