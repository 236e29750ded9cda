"""How the gateway learns of the cluster: list, then watch, for ever.

Knows the API server's list and watch protocol: pages, resource versions, bookmarks, 410, cut and silent
connections. Refuses to know what the objects mean (`world` does) and what they are for. A watch never ends
and never raises: whatever goes wrong, it waits a little longer each time and begins anew, and what was last
known stays.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemill_gateway import world as worlds
from tidemill_gateway.api_error import ApiError
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Item, Kind, MalformedObjectError, parse, uid_of
from tidemill_gateway.state import ClusterState
from tidemill_operator import names

logger = logging.getLogger(__name__)

GONE = 410
PAGE_SIZE = 500
MAX_EVENT_BYTES = 16 * 1024 * 1024
OURS = names.LABEL_SERVICE  # a selector that asks only for the label's presence
METADATA_ONLY = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"


class ApiReader(Protocol):
    """What a watch needs of an API client; both raise ApiError."""

    async def get(self, path: str, query: dict[str, str], accept: str) -> dict[str, Any]:
        """Fetch one JSON document."""

    def stream(
        self, path: str, query: dict[str, str], accept: str, *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Fetch the chunks of an endless answer; silence for this long is an ApiError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One thing to watch: a kind, in one namespace or in all (`None`), and which of its objects."""

    kind: Kind
    namespace: str | None
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name the source in logs and states."""
        return f"{self.kind.value} in {self.namespace}" if self.namespace else self.kind.value

    @property
    def path(self) -> str:
        """Give the API path of the collection."""
        root = {
            Kind.SERVICES: f"/apis/{names.GROUP}/{names.VERSION}",
            Kind.PODS: "/api/v1",
            Kind.REPLICA_SETS: "/apis/apps/v1",
            Kind.DEPLOYMENTS: "/apis/apps/v1",
            Kind.GATEWAYS: "/api/v1",
            Kind.KEYS: "/api/v1",
        }[self.kind]
        within = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{within}/{self.kind.plural}"

    def accept(self, *, is_list: bool) -> str:
        """Give the Accept header: of links between owners only the metadata matters."""
        if self.kind in (Kind.REPLICA_SETS, Kind.DEPLOYMENTS):
            return METADATA_ONLY.format("List" if is_list else "")
        return "application/json"


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchTiming:
    """How patient a watch is."""

    server_timeout_seconds: int = 300
    silence_seconds: float = 120.0
    first_delay_seconds: float = 0.2
    max_delay_seconds: float = 5.0
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """Where this gateway lives, how its fellows are found, and which Secret holds the projected keys."""

    namespace: str
    gateway_selector: str = names.DEFAULT_GATEWAY_SELECTOR
    keys_secret: str = names.GATEWAY_KEYS_SECRET


def sources(namespaces: tuple[str, ...], home: Home | None = None) -> tuple[Source, ...]:
    """Give everything there is to watch; without namespaces, in the whole cluster.

    Without a home, as on a developer's machine, there are no fellows and no keys.
    """
    wanted: tuple[str | None, ...] = namespaces or (None,)
    ours = {"labelSelector": OURS}
    found = [
        Source(kind=kind, namespace=namespace, selector={} if kind is Kind.SERVICES else ours)
        for namespace in wanted
        for kind in (Kind.SERVICES, Kind.PODS, Kind.REPLICA_SETS, Kind.DEPLOYMENTS)
    ]
    if home is not None:
        fellows = {"labelSelector": home.gateway_selector}
        only = {"fieldSelector": f"metadata.name={home.keys_secret}"}
        found.append(Source(kind=Kind.GATEWAYS, namespace=home.namespace, selector=fellows))
        found.append(Source(kind=Kind.KEYS, namespace=home.namespace, selector=only))
    return tuple(found)


class Watch:
    """Keeps one source of a ClusterState up to date."""

    def __init__(
        self,
        *,
        source: Source,
        api: ApiReader,
        state: ClusterState,
        metrics: GatewayMetrics,
        timing: WatchTiming,
    ) -> None:
        self._source = source
        self._api = api
        self._state = state
        self._metrics = metrics
        self._timing = timing
        self._version: str | None = None
        self._num_failures = 0

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            reason = await self._once()
            self._metrics.view.watch_restarts.labels(self._source.kind.value, reason).inc()
            if self._num_failures:
                await self._timing.sleep(self._delay())

    async def _once(self) -> str:
        """List if necessary, then watch until the watch ends; say why it ended."""
        try:
            if self._version is None:
                self._version = await self._list()
            had_events = await self._follow(self._version)
        except ApiError as error:
            if error.status == GONE:
                logger.info(
                    "watch of %s: version %s is gone, listing again", self._source.label, self._version
                )
                self._version = None
                self._num_failures += 1
                return "gone"
            self._num_failures += 1
            if self._num_failures & (self._num_failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
                logger.warning(
                    "watch of %s: %s; failure %d in a row", self._source.label, error, self._num_failures
                )
            return "error"
        except Exception:
            # A fault of our own must not leave the gateway with a world that grows older unnoticed.
            self._version = None
            self._num_failures += 1
            logger.exception("watch of %s failed, listing again", self._source.label)
            return "fault"
        self._num_failures = 0 if had_events else self._num_failures + 1
        return "ended"

    def _delay(self) -> float:
        grown = self._timing.first_delay_seconds * 2.0 ** min(self._num_failures - 1, 16)
        return min(grown, self._timing.max_delay_seconds) * (0.5 + 0.5 * self._timing.jitter())

    async def _list(self) -> str:
        items: list[Item] = []
        query = {"limit": str(PAGE_SIZE), **self._source.selector}
        while True:
            page = await self._api.get(self._source.path, query, self._source.accept(is_list=True))
            metadata = page.get("metadata") or {}
            for raw in page.get("items") or ():
                try:
                    items.append(parse(self._source.kind, raw))
                except MalformedObjectError as error:
                    logger.warning("list of %s: left out an object: %s", self._source.label, error)
            if not metadata.get("continue"):
                break
            query["continue"] = metadata["continue"]
        version = metadata.get("resourceVersion")
        if not version:
            raise ApiError(0, "a list without a resourceVersion")
        self._state.update(
            worlds.replace_all(self._state.world, self._source.kind, self._source.namespace, items)
        )
        self._state.mark_delivered(self._source.label)
        logger.info("list of %s: %d objects at version %s", self._source.label, len(items), version)
        return str(version)

    async def _follow(self, version: str) -> bool:
        """Apply events until the server ends the watch; say whether there were any."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(
                int(self._timing.server_timeout_seconds * (0.8 + 0.2 * self._timing.jitter()))
            ),
            **self._source.selector,
        }
        chunks = self._api.stream(
            self._source.path,
            query,
            self._source.accept(is_list=False),
            silence_seconds=self._timing.silence_seconds,
        )
        had_events = False
        async with aclosing(chunks), aclosing(split_lines(chunks)) as lines:
            async for line in lines:
                self._apply(_decode_event(line))
                had_events = True
                self._num_failures = 0
        return had_events

    def _apply(self, event: dict[str, Any]) -> None:
        kind, raw = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(
                int(raw.get("code") or 0), str(raw.get("message") or raw.get("reason") or "an error event")
            )
        version = (raw.get("metadata") or {}).get("resourceVersion")
        if not version:
            raise ApiError(0, f"an event {kind} without a resourceVersion")
        if kind != "BOOKMARK":
            self._apply_change(kind, raw)
        self._version = str(version)

    def _apply_change(self, kind: str, raw: dict[str, Any]) -> None:
        before = self._state.world
        try:
            if kind == "DELETED":
                after = worlds.remove(before, self._source.kind, uid_of(raw))
            else:
                after = worlds.put(before, self._source.kind, parse(self._source.kind, raw))
        except MalformedObjectError as error:
            logger.warning("watch of %s: passed over an event %s: %s", self._source.label, kind, error)
            return
        self._state.update(after)


async def split_lines(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Cut chunks into lines; a line that never ends, and a last one without its end, are ApiErrors."""
    pending = bytearray()
    async for chunk in chunks:
        pending += chunk
        if b"\n" in chunk:
            *lines, rest = bytes(pending).split(b"\n")
            pending = bytearray(rest)
            for line in lines:
                if line.strip():
                    yield line
        if len(pending) > MAX_EVENT_BYTES:
            raise ApiError(0, f"an event larger than {MAX_EVENT_BYTES} bytes")
    if pending.strip():
        raise ApiError(0, "the connection was cut inside an event")


def _decode_event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
        if isinstance(event["type"], str) and isinstance(event["object"], dict):
            return dict(event)
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError(0, f"an event that can't be read: {error}") from error
    raise ApiError(0, "an event of another form")
