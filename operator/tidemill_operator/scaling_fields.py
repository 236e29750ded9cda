"""The names and kinds of the fields below `spec.scaling`, for text that no API server has checked.

Pure. On a cluster the CRD's schema refuses and warns; a file given to a command meets nobody but this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidemill_operator.errors import InvalidSpec

Fields = Mapping[str, Any]
"""By name: a plain value's type, a mapping for an object, a list of one mapping for a list of objects."""

_RULES: Final[Fields] = {
    "stabilizationWindowSeconds": int,
    "selectPolicy": str,
    "policies": [{"type": str, "value": int, "periodSeconds": int}],
}
SCALING_FIELDS: Final[Fields] = {
    "mode": str,
    "minReplicas": int,
    "maxReplicas": int,
    "targets": {"kvCacheUtilizationPercent": int, "queueLengthPerReplica": int},
    "slo": {"timeToFirstToken": str, "interTokenLatency": str, "percentile": int},
    "behavior": {"scaleUp": _RULES, "scaleDown": _RULES},
    "scaleToZero": {"idleAfter": str, "activationTimeout": str, "maxBufferedRequests": int},
    "metrics": {"interval": str, "staleAfter": str},
    "schedules": [{"name": str, "timezone": str, "cron": str, "duration": str, "minReplicas": int}],
}
_WORDS: Final = {int: "a whole number", str: "text", dict: "an object", list: "a list"}


def check_scaling_fields(raw: object) -> None:
    """Raise InvalidSpec, naming the field, where one is unknown or not of its kind."""
    _check(raw, SCALING_FIELDS, "spec.scaling")


def _check(value: object, expected: Any, path: str) -> None:
    kind = expected if isinstance(expected, type) else type(expected)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidSpec(path, f"is {value!r}; write {_WORDS[kind]}")
    if isinstance(value, dict) and isinstance(expected, Mapping):
        for name, one in value.items():
            if name not in expected:
                raise InvalidSpec(f"{path}.{name}", f"is not a field; there are {', '.join(expected)}")
            _check(one, expected[name], f"{path}.{name}")
    elif isinstance(value, list):
        for place, one in enumerate(value):
            _check(one, expected[0], f"{path}[{place}]")
