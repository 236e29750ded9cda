"""List, then watch, for ever: keeps one shelf of the cache as the API server shows it.

Knows the protocol of lists and watches: versions, bookmarks, 410, cut and silent connections. Refuses to know
what the objects mean. It never ends and never raises: whatever goes wrong, it waits a little longer each time
and begins anew, and what was last known stays.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tidemill_operator import metrics
from tidemill_operator.api import Api
from tidemill_operator.cache import Cache, Object
from tidemill_operator.clock import Clock
from tidemill_operator.errors import ApiError

logger = logging.getLogger(__name__)

GONE: Final = 410
NOT_FOUND: Final = 404
FIRST_DELAY_SECONDS: Final = 0.5
MAX_DELAY_SECONDS: Final = 15.0
UNKNOWN_SECONDS: Final = 15.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to watch: a kind, in one namespace or in all (None), by labels; and the shelf that it fills.

    `is_optional`: an API server may not know the kind, and may come to know it later.
    """

    kind: str
    shelf: str
    selector: str
    namespace: str | None = None
    is_optional: bool = False

    def __str__(self) -> str:
        return f"{self.shelf} in {self.namespace}" if self.namespace else self.shelf


class Informer:
    """Keeps one source up to date; `on_change` hears of every object that is new, changed or gone."""

    def __init__(
        self, api: Api, source: Source, cache: Cache, on_change: Callable[[str, Object], None], clock: Clock
    ) -> None:
        self._api = api
        self._source = source
        self._cache = cache
        self._on_change = on_change
        self._clock = clock
        self._version: str | None = None
        self._num_failures = 0
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            reason = await self._once()
            if reason == "unknown":
                await self._clock.sleep(UNKNOWN_SECONDS)
                continue
            metrics.WATCH_RESTARTS.labels(self._source.shelf, reason).inc()
            if self._num_failures:
                await self._clock.sleep(self._delay())

    def _delay(self) -> float:
        return min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(self._num_failures - 1, 10))

    async def _once(self) -> str:
        """List if necessary, then watch until the watch ends; say why it ended."""
        had_events = False
        try:
            if self._version is None:
                self._version = await self._list()
            async for event in self._api.watch(
                self._source.kind, self._source.namespace, self._source.selector, self._version
            ):
                self._take(event)
                had_events = True
        except ApiError as error:
            return self._failed(error)
        except Exception:
            # A fault of our own must not leave the operator with a world that grows older unnoticed.
            self._version = None
            self._num_failures += 1
            logger.exception("watch of %s failed, listing again", self._source)
            return "fault"
        self._num_failures = 0 if had_events else self._num_failures + 1
        return "ended"

    def _failed(self, error: ApiError) -> str:
        if error.status == NOT_FOUND and self._source.is_optional:
            self._version = None
            self._cache.set_known(self._source.shelf, is_known=False)
            self.synced.set()
            return "unknown"
        self._num_failures += 1
        if error.status == GONE:
            logger.info("watch of %s: version %s is gone, listing again", self._source, self._version)
            self._version = None
            return "gone"
        if self._num_failures & (self._num_failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            logger.warning("watch of %s: %s; failure %d in a row", self._source, error, self._num_failures)
        return "error"

    async def _list(self) -> str:
        items, version = await self._api.list_all(
            self._source.kind, self._source.namespace, self._source.selector
        )
        source = self._source
        self._cache.set_known(source.shelf, is_known=True)
        changed = self._cache.replace(source.shelf, source.kind, source.namespace, items, version)
        for obj in changed:
            self._on_change(source.shelf, obj)
        logger.debug("list of %s: %d objects at version %s", source, len(items), version)
        self._update_gauge()
        self.synced.set()
        return version

    def _take(self, event: dict[str, Any]) -> None:
        kind, raw = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(
                status=int(raw.get("code") or 0),
                reason=str(raw.get("reason") or "Unknown"),
                message=str(raw.get("message") or ""),
                request=f"WATCH {self._source}",
            )
        self._num_failures = 0
        if kind == "DELETED":
            self._cache.drop(self._source.shelf, raw)
            self._on_change(self._source.shelf, raw)
        elif kind in {"ADDED", "MODIFIED"}:
            self._cache.put(self._source.shelf, self._source.kind, raw)
            # Told even when our own write has put the same copy in before: that run saw the world without it.
            self._on_change(self._source.shelf, raw)
        self._version = str(raw["metadata"]["resourceVersion"])
        self._update_gauge()

    def _update_gauge(self) -> None:
        metrics.CACHED_OBJECTS.set(len(self._cache))
