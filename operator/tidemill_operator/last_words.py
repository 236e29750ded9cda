"""How many streams were cut with replicas that somebody else sent away: evicted, deleted, or with their node.

Pure. Knows that an engine leaves the number behind when its drain timeout is over, and that a pod is seen so
only for a moment. Keeps that until the next run tells it. Refuses to tell what the operator's own drains have
told already, and to hear a pod that merely bears our labels: its owners must lead to the service. They may be
gone by then, as with a deleted service, so that they are remembered.
"""

import json
import re
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidemill_operator import names
from tidemill_operator.keys import Key
from tidemill_operator.views import pod_view

DRAIN_TIMEOUT: Final = "DrainTimeout"
MAX_REMEMBERED: Final = 2000
MAX_OWNERS: Final = 20_000
"""ReplicaSets and Deployments of so many revisions; the ones seen last stay."""
_OWNED_BY: Final = {"Pod": "ReplicaSet", "ReplicaSet": "Deployment", "Deployment": names.KIND}
_COUNT: Final = re.compile(r"^([0-9]{1,6}) requests ")


@dataclass(frozen=True, kw_only=True)
class CutStreams:
    """A replica that ended before its streams did."""

    pod: str
    num_streams: int


@dataclass(frozen=True, kw_only=True)
class _Owner:
    """Who controls an object, in the object's own namespace."""

    namespace: str
    name: str
    uid: str


class LastWords:
    """What ending engines said, by service, until it is taken."""

    def __init__(self) -> None:
        self._untold: dict[Key, list[CutStreams]] = defaultdict(list)
        self._noted: OrderedDict[str, None] = OrderedDict()
        self._owners: OrderedDict[str, _Owner] = OrderedDict()

    def note_owner(self, kind: str, obj: Mapping[str, Any]) -> None:
        """Take in an object that may stand between a pod and its service."""
        owner = _owner_of(kind, obj) if kind != "Pod" else None
        if owner is None:
            return
        uid = obj["metadata"]["uid"]
        self._owners[uid] = owner
        self._owners.move_to_end(uid)
        while len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)

    def note(self, pod: Mapping[str, Any]) -> Key | None:
        """Take in a pod as a watch shows it, each once; give the service that has news."""
        cut = cut_streams(pod)
        uid = pod["metadata"]["uid"]
        key = self._service_of(pod) if cut is not None and uid not in self._noted else None
        if cut is None or key is None:
            return None
        self._noted[uid] = None
        while len(self._noted) > MAX_REMEMBERED:
            self._noted.popitem(last=False)
        self._untold[key].append(cut)
        return key

    def _service_of(self, pod: Mapping[str, Any]) -> Key | None:
        """Follow a pod's owners, who may be gone, to its service; None where they lead to none."""
        owner = _owner_of("Pod", pod)
        for _ in ("ReplicaSet", "Deployment"):
            above = self._owners.get(owner.uid) if owner is not None else None
            owner = above if owner is not None and above and above.namespace == owner.namespace else None
        return None if owner is None else Key(owner.namespace, owner.name)

    def take(self, key: Key) -> tuple[CutStreams, ...]:
        """Give what was not told yet about a service, once."""
        return tuple(self._untold.pop(key, ()))


def cut_streams(pod: Mapping[str, Any]) -> CutStreams | None:
    """Read an ending pod's last words; None when it has cut nothing, or the operator drained it."""
    view = pod_view(pod)
    if not view.is_terminating or view.is_draining:
        return None
    try:
        said = json.loads(_engines_end(pod).get("message") or "")
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("reason") != DRAIN_TIMEOUT:
        return None
    count = _COUNT.match(str(said.get("message")))
    return None if count is None else CutStreams(pod=view.name, num_streams=int(count.group(1)))


def _engines_end(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give how the engine has ended now; an end before it began anew is old news."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    states = (found.get("state") or {} for found in statuses if found.get("name") == names.ENGINE_CONTAINER)
    return next(states, {}).get("terminated") or {}


def _owner_of(kind: str, obj: Mapping[str, Any]) -> _Owner | None:
    """Read who controls an object; None where it is no such one as an object of ours has."""
    metadata = obj["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == _OWNED_BY.get(kind):
            return _Owner(namespace=metadata["namespace"], name=reference["name"], uid=reference["uid"])
    return None
