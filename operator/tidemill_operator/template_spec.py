"""What a person may write under spec.template, beyond what the API server itself checks of a pod.

Pure. Knows which parts of a pod the operator keeps for itself and where to say the same thing instead.
Refuses to merge (`manifests.merge`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidemill_operator import names
from tidemill_operator.errors import InvalidSpec

Raw = Mapping[str, Any]

FIELD: Final = "spec.template"

_TOP_LEVEL: Final = frozenset({"metadata", "spec"})
_METADATA: Final = frozenset({"labels", "annotations", "creationTimestamp"})
_ENGINE_KEEPS: Final[Mapping[str, str]] = {
    "args": "use spec.engine.args",
    "command": "the operator sets it",
    "image": "use spec.engine.image",
    "ports": "the operator sets them; a further container may have its own",
    "resources": "use spec.resources",
    "startupProbe": "use spec.model.loadTimeout",
    "terminationMessagePath": "the operator reads it",
}
_OWN_LABELS: Final = frozenset(
    {
        names.LABEL_APP_NAME,
        names.LABEL_APP_INSTANCE,
        names.LABEL_APP_MANAGED_BY,
        names.LABEL_APP_COMPONENT,
    }
)


def checked_template(template: Raw) -> Raw:
    """Return the template, or raise InvalidSpec naming the part that belongs to the operator."""
    _require_known(template, _TOP_LEVEL, FIELD)
    metadata, spec = _mapping(template, "metadata", FIELD), _mapping(template, "spec", FIELD)
    _require_known(metadata, _METADATA, f"{FIELD}.metadata")
    for label in _mapping(metadata, "labels", f"{FIELD}.metadata"):
        if label in _OWN_LABELS or label.startswith(f"{names.GROUP}/"):
            raise InvalidSpec(f"{FIELD}.metadata.labels", f"{label} is set by the operator: remove it")
    for path, container in _containers(spec):
        name = container.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidSpec(path, "every container needs a name; the engine's is 'engine'")
        if name == names.DOWNLOAD_CONTAINER:
            raise InvalidSpec(path, f"{name} is the name of the operator's own container: choose another")
        if name == names.ENGINE_CONTAINER:
            _check_engine(path, container)
    return template


def _check_engine(path: str, container: Raw) -> None:
    if ".initContainers" in path:
        raise InvalidSpec(path, "the engine is a main container: name it under spec.template.spec.containers")
    for key, remedy in _ENGINE_KEEPS.items():
        if key in container:
            raise InvalidSpec(f"{path}.{key}", f"cannot be set for the engine's container: {remedy}")


def _containers(spec: Raw) -> Iterator[tuple[str, Raw]]:
    for key in ("containers", "initContainers"):
        listed = spec.get(key) or []
        path = f"{FIELD}.spec.{key}"
        if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
            raise InvalidSpec(path, "must be a list of containers")
        for number, item in enumerate(listed):
            yield f"{path}[{number}]", item


def _mapping(raw: Raw, key: str, path: str) -> Raw:
    value = raw.get(key) or {}
    if not isinstance(value, Mapping):
        raise InvalidSpec(f"{path}.{key}", "must be an object")
    return value


def _require_known(raw: Raw, known: frozenset[str], path: str) -> None:
    for key in raw:
        if key not in known:
            raise InvalidSpec(f"{path}.{key}", f"is unknown here; there are {', '.join(sorted(known))}")
