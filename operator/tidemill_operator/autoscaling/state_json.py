"""`ScalingState` as `status.scaling` holds it, and back. What cannot be read is left out.

The API has no floats, so times are whole milliseconds and the learned figures whole thousandths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tidemill_operator.autoscaling.decision import HistoryEntry, Learned, ScalingState

MAX_HISTORY = 5
MAX_MESSAGE_CHARS = 256
_THOUSAND = 1000


def to_json(state: ScalingState) -> dict[str, Any]:
    """Return the part of a state that outlives the process: whole numbers, strings, lists and maps."""
    plain: dict[str, Any] = {
        "learned": {
            _camel(field.name): round(value * _THOUSAND)
            for field in fields(Learned)
            if (value := getattr(state.learned, field.name)) is not None
        },
        "history": [_entry_json(entry) for entry in state.history[:MAX_HISTORY]],
        "wanted": [[round(at * _THOUSAND), replicas] for at, replicas in state.wanted],
        "changes": [[round(at * _THOUSAND), change] for at, change in state.changes],
    }
    for name in ("last_scale_time", "last_request_time"):
        value = getattr(state, name)
        if value is not None:
            plain[_camel(name)] = round(value * _THOUSAND)
    return plain


def from_json(plain: Mapping[str, Any] | None) -> ScalingState:
    """Return the state that was written; fields missing or of another shape were never known."""
    plain = plain if isinstance(plain, Mapping) else {}
    learned = plain.get("learned")
    known = learned if isinstance(learned, Mapping) else {}
    return ScalingState(
        learned=Learned(**{field.name: _number(known.get(_camel(field.name))) for field in fields(Learned)}),
        history=tuple(entry for raw in _list(plain.get("history")) if (entry := _entry(raw)) is not None),
        wanted=_pairs(plain.get("wanted")),
        changes=_pairs(plain.get("changes")),
        last_scale_time=_number(plain.get("lastScaleTime")),
        last_request_time=_number(plain.get("lastRequestTime")),
    )


def _entry_json(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "at": round(entry.at * _THOUSAND),
        "from": entry.from_replicas,
        "to": entry.to_replicas,
        "reason": entry.reason,
        "message": entry.message[:MAX_MESSAGE_CHARS],
    }


def _entry(raw: Any) -> HistoryEntry | None:
    if not isinstance(raw, Mapping):
        return None
    at, from_replicas, to_replicas = (_number(raw.get("at")), raw.get("from"), raw.get("to"))
    if at is None or not isinstance(from_replicas, int) or not isinstance(to_replicas, int):
        return None
    return HistoryEntry(
        at=at,
        from_replicas=from_replicas,
        to_replicas=to_replicas,
        reason=str(raw.get("reason", "")),
        message=str(raw.get("message", "")),
    )


def _pairs(raw: Any) -> tuple[tuple[float, int], ...]:
    """Read pairs of (milliseconds, count)."""
    good = [
        (at, pair[1])
        for pair in _list(raw)
        if isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[1], int)
        and (at := _number(pair[0])) is not None
    ]
    return tuple(good)


def _list(raw: Any) -> list[Any]:
    return list(raw) if isinstance(raw, list | tuple) else []


def _number(raw: Any) -> float | None:
    """Read thousandths; a boolean is no number."""
    return raw / _THOUSAND if isinstance(raw, int | float) and not isinstance(raw, bool) else None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
