"""What to tell whoever describes a service about its scaling: every change with its reason and numbers.

Pure. Compares the status that is with the one that will be, so that a restart tells nothing twice. Refuses to
know how anything was decided.
"""

from collections.abc import Mapping
from typing import Any, Final

from tidemill_operator import situation

Raw = Mapping[str, Any]
Told = tuple[bool, str, str]
"""Whether it is a warning, the reason, the message."""

_WATCHED: Final = (situation.METRICS_AVAILABLE, situation.SLO_MET)


def scaling_events(before: Raw, after: Raw, *, is_advisory: bool) -> list[Told]:
    """Give the events between two statuses; none while nothing was ever decided."""
    scaling: Raw = after.get("scaling") or {}
    if not scaling.get("reason"):
        return []
    return [*_change(before, after, scaling, is_advisory=is_advisory), *_transitions(before, after)]


def _change(before: Raw, after: Raw, scaling: Raw, *, is_advisory: bool) -> list[Told]:
    if is_advisory:
        old, new = (before.get("scaling") or {}).get("desiredReplicas"), scaling.get("desiredReplicas")
    else:
        old, new = before.get("desiredReplicas"), after.get("desiredReplicas")
    if old is None or new is None or old == new:
        return []
    verb = "Would scale" if is_advisory else "Scaled"
    reason = "WouldScale" if is_advisory else ("ScaledUp" if new > old else "ScaledDown")
    limits = ", ".join(f"{limit['name']} {limit['from']} → {limit['to']}" for limit in _limits(scaling))
    message = f"{verb} from {old} to {new} replicas: {scaling['reason']}: {scaling.get('message', '')}"
    return [(False, reason, f"{message} (limits: {limits})" if limits else message)]


def _limits(scaling: Raw) -> list[Raw]:
    return [limit for limit in scaling.get("limits") or () if {"name", "from", "to"} <= limit.keys()]


def _transitions(before: Raw, after: Raw) -> list[Told]:
    told = []
    for kind in _WATCHED:
        old, new = _condition(before, kind), _condition(after, kind)
        if new.get("status") == "False" and (old.get("status"), old.get("reason")) != (
            "False",
            new.get("reason"),
        ):
            told.append((True, str(new.get("reason")), f"{kind}: {new.get('message', '')}"))
        elif new.get("status") == "True" and old.get("status") == "False":
            told.append((False, str(new.get("reason")), f"{kind} again: {new.get('message', '')}"))
    return told


def _condition(status: Raw, kind: str) -> Raw:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
