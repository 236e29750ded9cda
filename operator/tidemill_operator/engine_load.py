"""What one engine said about itself on its admin port.

Pure. Knows which of its figures matter when a replica is to go. Refuses to know how they were asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PHASE_REFUSING: Final = "refusing"


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """One engine's load; `is_refusing`: it drains and takes nothing new any more.

    Answers and failures count from the engine's start; a request that it sent elsewhere is neither.
    """

    in_flight_requests: int = 0
    in_flight_tokens: int = 0
    num_cached_blocks: int = 0
    is_refusing: bool = False
    num_answered: int = 0
    num_failed: int = 0


def parse_load(answer: Mapping[str, Any]) -> EngineLoad:
    """Read the answer to `GET /load` or `PUT /drain`; what an older engine does not say counts as nothing."""
    return EngineLoad(
        in_flight_requests=_count(answer, "in_flight_requests"),
        in_flight_tokens=_count(answer, "in_flight_tokens"),
        num_cached_blocks=_count(answer, "cached_blocks"),
        is_refusing=answer.get("phase") == PHASE_REFUSING,
        num_answered=_count(answer, "answered_requests"),
        num_failed=_count(answer, "failed_requests"),
    )


def _count(answer: Mapping[str, Any], key: str) -> int:
    value = answer.get(key, 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
