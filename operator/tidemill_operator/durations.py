"""Durations as users write them: whole numbers of hours, minutes, seconds and milliseconds.

Pure. Knows the form that the schema states. Refuses to know which durations make sense where.
"""

import re
from collections.abc import Mapping
from typing import Final

from tidemill_operator.errors import InvalidSpec

_DURATION: Final = re.compile(r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")
_DURATION_PART: Final = re.compile(r"([0-9]+)(ms|h|m|s)")
_SECONDS: Final[Mapping[str, float]] = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}


def parse_duration(path: str, text: object) -> float:
    """Read a duration such as 1h30m or 500ms as seconds; raise InvalidSpec naming the field."""
    if not isinstance(text, str) or not _DURATION.match(text):
        raise InvalidSpec(path, f"{text!r} is not a duration; write for example 30m, 90s or 1h30m")
    return sum(int(amount) * _SECONDS[unit] for amount, unit in _DURATION_PART.findall(text))
