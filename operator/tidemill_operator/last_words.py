"""How many streams were cut with replicas that somebody else sent away: evicted, deleted, or with their node.

Pure. Knows that an engine leaves the number behind when its drain timeout is over, and that a pod is seen so
only for a moment. Keeps that until the next run tells it. Refuses to tell what the operator's own drains have
told already.
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
_COUNT: Final = re.compile(r"^([0-9]{1,6}) requests ")


@dataclass(frozen=True, kw_only=True)
class CutStreams:
    """A replica that ended before its streams did."""

    pod: str
    num_streams: int


class LastWords:
    """What ending engines said, by service, until it is taken."""

    def __init__(self) -> None:
        self._untold: dict[Key, list[CutStreams]] = defaultdict(list)
        self._noted: OrderedDict[str, None] = OrderedDict()

    def note(self, pod: Mapping[str, Any]) -> Key | None:
        """Take in a pod as a watch shows it, each once; give the service that has news."""
        cut = cut_streams(pod)
        metadata = pod["metadata"]
        service = (metadata.get("labels") or {}).get(names.LABEL_SERVICE)
        if cut is None or not service or metadata["uid"] in self._noted:
            return None
        self._noted[metadata["uid"]] = None
        while len(self._noted) > MAX_REMEMBERED:
            self._noted.popitem(last=False)
        key = Key(metadata["namespace"], service)
        self._untold[key].append(cut)
        return key

    def take(self, key: Key) -> tuple[CutStreams, ...]:
        """Give what was not told yet about a service, once."""
        return tuple(self._untold.pop(key, ()))


def cut_streams(pod: Mapping[str, Any]) -> CutStreams | None:
    """Read an ending pod's last words; None when it has cut nothing, or the operator drained it."""
    view = pod_view(pod)
    if not view.is_terminating or view.is_draining or view.termination is None:
        return None
    try:
        said = json.loads(view.termination.message)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("reason") != DRAIN_TIMEOUT:
        return None
    count = _COUNT.match(str(said.get("message")))
    return None if count is None else CutStreams(pod=view.name, num_streams=int(count.group(1)))
