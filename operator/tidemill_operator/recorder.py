"""Events on an InferenceService: the same one is told once in a while, and then counted rather than repeated.

Knows how an Event looks, what was told lately, and that the same words about the same service have the same
name, whichever operator tells them. Refuses to fail a run: an event that cannot be written is logged.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from tidemill_operator import metrics, names
from tidemill_operator.actions import Event
from tidemill_operator.api import Api, Object, Place
from tidemill_operator.errors import ApiError
from tidemill_operator.keys import Key

logger = logging.getLogger(__name__)

REPEAT_AFTER_SECONDS: Final = 600.0
MAX_REMEMBERED: Final = 4096
MAX_MESSAGE_LENGTH: Final = 1000


class Recorder:
    """Writes events, the same one at most every ten minutes."""

    def __init__(self, api: Api, instance: str, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._instance = instance
        self._monotonic = monotonic
        self._told: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    async def record(self, service: Object, event: Event) -> None:
        """Write one event about a service, unless it was told lately."""
        metadata = service["metadata"]
        key = (metadata["uid"], event.reason, event.message)
        now = self._monotonic()
        if key in self._told and now - self._told[key] < REPEAT_AFTER_SECONDS:
            return
        self._told[key] = now
        self._told.move_to_end(key)
        while len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)
        logger.info("%s/%s: %s: %s", metadata["namespace"], metadata["name"], event.reason, event.message)
        try:
            await self._write(self._manifest(service, event))
        except ApiError as error:
            logger.warning("cannot write the event %s: %s", event.reason, error)
        else:
            metrics.EVENTS.labels(event.type).inc()

    async def warn_of_keys(self, service: Object, message: str) -> None:
        """Tell what is wrong with the Secret that a service names for its API keys."""
        await self.record(service, Event(type="Warning", reason="ApiKeysIncomplete", message=message))

    async def _write(self, manifest: Object) -> None:
        """Create the event, or count once more the one that says the same."""
        try:
            await self._api.create(manifest, kind="Event")
        except ApiError as error:
            if not error.is_conflict:
                raise
            metadata = manifest["metadata"]
            place = Place(kind="Event", namespace=metadata["namespace"], name=metadata["name"])
            before = await self._api.get(place)
            if before is not None:
                count = int(before.get("count") or 1) + 1
                await self._api.merge(place, {"count": count, "lastTimestamp": manifest["lastTimestamp"]})

    def _manifest(self, service: Object, event: Event) -> Object:
        metadata = service["metadata"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": _name_of(metadata, event), "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:MAX_MESSAGE_LENGTH],
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def identity_of_gone(key: Key) -> Object:
    """Stand in for a service that is not there any more, while its replicas still end."""
    return {"metadata": {"namespace": key.namespace, "name": key.name, "uid": "", "resourceVersion": ""}}


def _name_of(metadata: Object, event: Event) -> str:
    """Name an event by what it says and of whom."""
    said = "\0".join((metadata["uid"], event.type, event.reason, event.message))
    return f"{metadata['name']}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
