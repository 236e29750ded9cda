"""Lays what a person wrote of a pod over what the operator makes, as `kubectl patch` would.

Pure. Knows which lists of a pod are keyed and by what; a list without a key is replaced, and null removes.
Refuses to judge the outcome: the API server does, by a dry run.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

Raw = Mapping[str, Any]

_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
}
# Of these an entry is one of several kinds; one of another kind replaces it whole.
_UNIONS: Final[Mapping[str, str]] = {"volumes": "name", "env": "name"}


def merge(base: Raw, patch: Raw) -> dict[str, Any]:
    """Return the base with the patch laid over it; neither is changed."""
    merged: dict[str, Any] = deepcopy(dict(base))
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif key in _KEYS and isinstance(value, list):
            merged[key] = _merge_list(merged.get(key) or [], value, key)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = deepcopy(value)
    return merged


def _merge_list(base: list[Any], patch: list[Any], field: str) -> list[Any]:
    key = _KEYS[field]
    merged = list(base)
    places = {entry[key]: place for place, entry in enumerate(base)}
    for entry in patch:
        place = places.get(entry.get(key)) if isinstance(entry, Mapping) else None
        if place is None:
            merged.append(deepcopy(entry))
        elif field in _UNIONS and entry.keys() != merged[place].keys():
            merged[place] = deepcopy(dict(entry))
        else:
            merged[place] = merge(merged[place], entry)
    return merged
