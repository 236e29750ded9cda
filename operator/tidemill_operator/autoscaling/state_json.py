"""`ScalingState` as `status.scaling` holds it, and back. What cannot be read is left out and learned again.

The API has no floats: learned figures are whole numbers of the unit that the field names. Times that people
read are RFC 3339; those of the windows are whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tidemill_operator.autoscaling.decision import HistoryEntry, Learned, ScalingState

MAX_HISTORY: Final = 5
MAX_MESSAGE_CHARS: Final = 120
MAX_MOMENTS: Final = 32
"""Status must stay small."""

_LEARNED: Final[Mapping[str, tuple[str, float]]] = {
    "startup_seconds": ("startupMilliseconds", 1000.0),
    "prefill_tokens_per_second": ("prefillTokensPerSecond", 1.0),
    "decode_tokens_per_second": ("decodeTokensPerSecond", 1.0),
    "concurrency": ("concurrency", 1.0),
    "prompt_tokens_per_request": ("promptTokensPerRequest", 1.0),
    "output_tokens_per_request": ("outputTokensPerRequest", 1.0),
    "cached_share": ("cachedPercent", 100.0),
    "utilization": ("utilizationPercent", 100.0),
    "out_of_reach_share": ("outOfReachPercent", 100.0),
}
_THOUSAND: Final = 1000


def to_json(state: ScalingState) -> dict[str, Any]:
    """Return the part of a state that outlives the process: whole numbers, strings, lists and maps."""
    learned = {
        name: round(value * factor)
        for field, (name, factor) in _LEARNED.items()
        if (value := getattr(state.learned, field)) is not None
    }
    plain: dict[str, Any] = {
        "learned": learned,
        "history": [_entry_json(entry) for entry in state.history[:MAX_HISTORY]],
        "recommendations": _moments_json(peaks(state.wanted)),
        "scaleUpRecommendations": _moments_json(troughs(state.wanted_up)),
        "changes": _moments_json(state.changes[-MAX_MOMENTS:]),
    }
    plain = {name: value for name, value in plain.items() if value}
    for name, at in (("lastScaleTime", state.last_scale_time), ("lastRequestTime", state.last_request_time)):
        if at is not None:
            plain[name] = time_text(at)
    return plain


def from_json(plain: Mapping[str, Any] | None) -> ScalingState:
    """Return the state that was written; what is missing or of another shape is as if never known."""
    plain = plain if isinstance(plain, Mapping) else {}
    learned = plain.get("learned")
    known = learned if isinstance(learned, Mapping) else {}
    figures = {field: _number(known.get(name), factor) for field, (name, factor) in _LEARNED.items()}
    return ScalingState(
        learned=Learned(**figures),
        history=tuple(entry for raw in _list(plain.get("history")) if (entry := _entry(raw)) is not None),
        wanted=_pairs(plain.get("recommendations")),
        wanted_up=_pairs(plain.get("scaleUpRecommendations")),
        changes=_pairs(plain.get("changes")),
        last_scale_time=unix_time(plain.get("lastScaleTime")),
        last_request_time=unix_time(plain.get("lastRequestTime")),
    )


def peaks(moments: Iterable[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Keep the moments after which less was wanted: of any window up to now they have the highest number.

    Numbers fall from one to the next, so there are few. Where they are more than status holds, every second
    one counts as long as the next: then a window may see more than there was, never less.
    """
    kept: list[tuple[float, int]] = []
    for at, number in moments:
        while kept and kept[-1][1] <= number:
            kept.pop()
        kept.append((at, number))
    while len(kept) > MAX_MOMENTS:
        oldest, newest = kept[:-1], kept[-1]
        pairs = zip(oldest[::2], [*oldest[1::2], oldest[-1]], strict=False)
        kept = [*((later, number) for (_, number), (later, _) in pairs), newest]
    return tuple(kept)


def troughs(moments: Iterable[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Keep the moments after which more was wanted: of any window up to now they have the lowest number.

    Where they are more than status holds, a window may see less than there was, never more.
    """
    return tuple((at, -number) for at, number in peaks((at, -number) for at, number in moments))


def time_text(at: float) -> str:
    """Write unix seconds as the API writes times, with milliseconds where there are any."""
    milliseconds = round(at * _THOUSAND)
    whole = datetime.fromtimestamp(milliseconds // _THOUSAND, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    rest = milliseconds % _THOUSAND
    return f"{whole}.{rest:03d}Z" if rest else f"{whole}Z"


def unix_time(text: object) -> float | None:
    """Read a time of the API as unix seconds; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _entry_json(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "time": time_text(entry.at),
        "from": entry.from_replicas,
        "to": entry.to_replicas,
        "reason": entry.reason,
        "message": entry.message[:MAX_MESSAGE_CHARS],
    }


def _entry(raw: Any) -> HistoryEntry | None:
    if not isinstance(raw, Mapping):
        return None
    at, from_replicas, to_replicas = (unix_time(raw.get("time")), raw.get("from"), raw.get("to"))
    if at is None or not isinstance(from_replicas, int) or not isinstance(to_replicas, int):
        return None
    return HistoryEntry(
        at=at,
        from_replicas=from_replicas,
        to_replicas=to_replicas,
        reason=str(raw.get("reason", "")),
        message=str(raw.get("message", "")),
    )


def _moments_json(moments: tuple[tuple[float, int], ...]) -> list[list[int]]:
    return [[round(at * _THOUSAND), number] for at, number in moments]


def _pairs(raw: Any) -> tuple[tuple[float, int], ...]:
    """Read pairs of (milliseconds, count)."""
    good = [
        (at, pair[1])
        for pair in _list(raw)
        if isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[1], int)
        and (at := _number(pair[0], _THOUSAND)) is not None
    ]
    return tuple(good)


def _list(raw: Any) -> list[Any]:
    return list(raw) if isinstance(raw, list | tuple) else []


def _number(raw: Any, factor: float) -> float | None:
    """Read a whole number of so many parts of a unit; a boolean is no number."""
    return raw / factor if isinstance(raw, int | float) and not isinstance(raw, bool) else None
