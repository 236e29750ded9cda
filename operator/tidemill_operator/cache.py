"""What the watches have shown of everything but the InferenceServices, in memory.

Pure. Knows objects by shelf, namespace and name, by the service whose label they bear, and which of two
copies is newer. Refuses to know where objects come from and what they mean.

A copy may be a little old. Nothing that is decided relies on it being fresh: writes are applied to a named
object or carry the version or UID that was seen, what was just written is put in at once, and a name that
looks free is looked up in the API before it is taken.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidemill_operator import names

Object = dict[str, Any]
Name = tuple[str, str]

GATEWAYS: Final = "Gateway"
MAX_TOMBSTONES: Final = 2000


class Cache:
    """Every object that was seen and is not known to be gone.

    A shelf is a kind, or a part of a kind that is watched by a selector of its own.
    """

    def __init__(self) -> None:
        self._shelves: dict[str, dict[Name, Object]] = defaultdict(dict)
        self._by_service: dict[str, dict[Name, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._tombstones: OrderedDict[tuple[str, Name], int] = OrderedDict()
        self._unknown: set[str] = set()

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self._shelves.values())

    def find(self, shelf: str, namespace: str, name: str) -> Object | None:
        """Give one object; None when it was not seen or is gone."""
        return self._shelves[shelf].get((namespace, name))

    def of_service(self, shelf: str, namespace: str, service: str) -> list[Object]:
        """Give the objects that bear a service's label, in the order of their names."""
        found = sorted(self._by_service[shelf].get((namespace, service), ()))
        return [self._shelves[shelf][namespace, name] for name in found]

    def all(self, shelf: str) -> list[Object]:
        """Give every object of a shelf, in a stable order."""
        objects = self._shelves[shelf]
        return [objects[name] for name in sorted(objects)]

    def is_known(self, shelf: str) -> bool:
        """Tell whether the API server knows a shelf's kind, as far as it was asked."""
        return shelf not in self._unknown

    def set_known(self, shelf: str, *, is_known: bool) -> None:
        """Take note of whether the API server knows a shelf's kind; if not, nothing is left of it."""
        if is_known:
            self._unknown.discard(shelf)
            return
        self._unknown.add(shelf)
        for obj in self._shelves.pop(shelf, {}).values():
            self._unlink(shelf, obj)

    def put(self, shelf: str, kind: str, raw: Mapping[str, Any]) -> Object | None:
        """Take in an object, unless a newer copy or its end was seen; give the copy that was kept."""
        obj = _trimmed(kind, raw)
        name = _name_of(obj)
        before = self._shelves[shelf].get(name)
        last_seen = self._tombstones.get((shelf, name), -1) if before is None else _version_of(before)
        if _version_of(obj) <= last_seen:
            return None
        if before is not None:
            self._unlink(shelf, before)
        self._shelves[shelf][name] = obj
        self._link(shelf, obj)
        return obj

    def drop(self, shelf: str, raw: Mapping[str, Any]) -> None:
        """Take out an object that is gone as of the version that it carries."""
        name = _name_of(raw)
        before = self._shelves[shelf].get(name)
        version = _version_of(raw)
        if before is not None and _version_of(before) > version:
            return
        if before is not None:
            self._unlink(shelf, before)
            del self._shelves[shelf][name]
        self._tombstones[shelf, name] = version
        self._tombstones.move_to_end((shelf, name))
        while len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)

    def replace(
        self, shelf: str, kind: str, namespace: str | None, listed: Iterable[Mapping[str, Any]], version: str
    ) -> list[Object]:
        """Take in a whole list as of a version; give what is new, changed or gone by it."""
        objects = {_name_of(raw): raw for raw in listed}
        changed = [put for raw in objects.values() if (put := self.put(shelf, kind, raw)) is not None]
        as_of = _number(version)
        for name, obj in list(self._shelves[shelf].items()):
            is_covered = namespace is None or name[0] == namespace
            if is_covered and name not in objects and _version_of(obj) <= as_of:
                self._unlink(shelf, obj)
                del self._shelves[shelf][name]
                changed.append(obj)
        return changed

    def _link(self, shelf: str, obj: Object) -> None:
        namespace, name = _name_of(obj)
        self._by_service[shelf][namespace, _service_of(obj)].add(name)

    def _unlink(self, shelf: str, obj: Object) -> None:
        namespace, name = _name_of(obj)
        key = (namespace, _service_of(obj))
        self._by_service[shelf][key].discard(name)
        if not self._by_service[shelf][key]:
            del self._by_service[shelf][key]


def _trimmed(kind: str, raw: Mapping[str, Any]) -> Object:
    """Say what the object is, which items of a list do not, and leave out who wrote which field."""
    metadata = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
    return {**raw, "kind": kind, "metadata": metadata}


def _name_of(raw: Mapping[str, Any]) -> Name:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]


def _service_of(raw: Mapping[str, Any]) -> str:
    return str((raw["metadata"].get("labels") or {}).get(names.LABEL_SERVICE, ""))


def _version_of(raw: Mapping[str, Any]) -> int:
    return _number(raw["metadata"].get("resourceVersion", ""))


def _number(version: str) -> int:
    """Read a resourceVersion, which the API server makes so that a greater number is newer."""
    return int(version) if version.isdigit() else 0
