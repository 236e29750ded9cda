"""What the watches show, turned into keys for the work queue.

Knows which events concern which service. Kopf watches the InferenceServices, and does no more than that: no
finalizers, no annotations, no timers, no stored progress, no peering. Informers watch the children, since
they ask the API server for ours alone and notice what went while a connection was cut. Refuses to read or
write anything itself.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import kopf

from tidemill_operator import names
from tidemill_operator.api import load_configuration
from tidemill_operator.cache import GATEWAYS
from tidemill_operator.claims import Claims
from tidemill_operator.informer import Source
from tidemill_operator.keys import Key
from tidemill_operator.observed import GatewayView
from tidemill_operator.views import gateway_views

logger = logging.getLogger(__name__)

Raw = Mapping[str, Any]
Note = Callable[[Key, Raw | None], None]

# Secrets are not watched: they are not the operator's to list. `secret_watch` asks for each by name.
WATCHED_CHILDREN: Final = (
    "Deployment",
    "ReplicaSet",
    "ControllerRevision",
    "Pod",
    "Service",
    "EndpointSlice",
    "Ingress",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PersistentVolumeClaim",
    "HTTPRoute",
)
# Kinds of the Gateway API, which a cluster need not have.
OPTIONAL_CHILDREN: Final = frozenset({"HTTPRoute"})


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which services are looked after, and where the gateways are; no namespaces means all."""

    operator_namespace: str
    gateway_selector: str
    namespaces: tuple[str, ...] = ()

    def includes(self, namespace: str) -> bool:
        """Tell whether services of a namespace are looked after."""
        return not self.namespaces or namespace in self.namespaces

    def sources(self) -> tuple[Source, ...]:
        """Give what the informers watch: all children by our label, and the gateway pods by theirs."""
        within: tuple[str | None, ...] = self.namespaces or (None,)
        gateways = Source(
            kind="Pod", shelf=GATEWAYS, selector=self.gateway_selector, namespace=self.operator_namespace
        )
        children = (
            Source(
                kind=kind,
                shelf=kind,
                selector=names.LABEL_SERVICE,
                namespace=namespace,
                is_optional=kind in OPTIONAL_CHILDREN,
            )
            for namespace in within
            for kind in WATCHED_CHILDREN
        )
        return (gateways, *children)


class EventRouter:
    """Decides which keys an event asks to be looked at."""

    def __init__(
        self, add: Callable[[Key], None], claims: Claims, scope: Scope, note: Note | None = None
    ) -> None:
        self._add = add
        self._note = note or _note_nothing
        self._claims = claims
        self._scope = scope
        self._seen: dict[Key, tuple[Any, ...]] = {}
        self._gateways: tuple[dict[str, GatewayView], dict[str, GatewayView]] = ({}, {})

    def on_service(self, event_type: str | None, service: Raw) -> None:
        """Take note of an InferenceService; the echo of a status write asks for nothing."""
        metadata = service["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        if not self._scope.includes(key.namespace):
            return
        self._note(key, None if event_type == "DELETED" else service)
        if event_type == "DELETED":
            self._seen.pop(key, None)
            rivals = self._claims.drop(key)
            self._add(key)
        else:
            rivals = self._claims.record(service)
            fingerprint = _fingerprint(service)
            is_news = self._seen.get(key) != fingerprint
            self._seen[key] = fingerprint
            if is_news or not (service.get("status") or {}).get("conditions"):
                self._add(key)
        for rival in rivals:
            self._add(rival)

    def on_child(self, child: Raw) -> None:
        """Ask for a look at the service whose label an object bears, if there is such a service."""
        metadata = child["metadata"]
        name = (metadata.get("labels") or {}).get(names.LABEL_SERVICE)
        key = Key(metadata.get("namespace") or "", name or "")
        if key in self._seen:
            self._add(key)

    def on_gateways(self, pods: Iterable[Raw]) -> None:
        """Ask for a look at all services when a gateway comes, leaves, goes, or changes its readiness."""
        ready, leaving = ({view.name: view for view in found} for found in gateway_views(pods))
        if (ready, leaving) == self._gateways:
            return
        self._gateways = ready, leaving
        logger.info(
            "gateways that are ready: %s; that leave: %s",
            ", ".join(sorted(ready)) or "none",
            ", ".join(sorted(leaving)) or "none",
        )
        for key in self._seen:
            self._add(key)

    def on_gone(self, key: Key) -> None:
        """Forget a service whose end no event has told, since a watch may be cut when it comes."""
        self._seen.pop(key, None)
        self._note(key, None)
        for rival in self._claims.drop(key):
            self._add(rival)

    def on_leaving(self, key: Key, uid: str) -> None:
        """Give the names of a service that is on its way out to those who wait for them."""
        for rival in self._claims.release(key, uid):
            self._add(rival)


async def run_watches(router: EventRouter, scope: Scope, on_started: Callable[[], object]) -> None:
    """Watch until cancelled; `on_started` is called when kopf has set itself up."""
    registry = _make_registry(router, on_started)
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None
    settings.scanning.disabled = True
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 300
    namespaces = sorted(scope.namespaces)
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=settings,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    await _until_one_ends(tasks)


async def _until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Run kopf's own tasks until one of them ends, then end the others and raise what ended it.

    `kopf.operator()` would also cancel every task that has begun since: those that work on services.
    """
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in ended:
        task.result()


async def connection() -> kopf.ConnectionInfo:
    """Give kopf the API server's address and credentials that the rest of the operator uses, read afresh."""
    configuration = await load_configuration()
    token = (configuration.api_key or {}).get("BearerToken", "")
    return kopf.ConnectionInfo(
        server=str(configuration.host),
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        token=token.removeprefix("Bearer ").removeprefix("bearer ") or None,
    )


def _make_registry(router: EventRouter, on_started: Callable[[], object]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection()

    async def started(**_: Any) -> None:
        on_started()

    async def service(event: Any, **_: Any) -> None:
        router.on_service(event["type"], event["object"])

    kopf.on.login(registry=registry)(login)
    kopf.on.startup(registry=registry)(started)
    kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)(service)
    return registry


def _note_nothing(_key: Key, _service: Raw | None) -> None:
    return


def _fingerprint(service: Raw) -> tuple[Any, ...]:
    """Reduce a service to what someone else than the operator may change about it."""
    metadata = service["metadata"]
    annotations = metadata.get("annotations") or {}
    activation = (service.get("status") or {}).get("activation") or {}
    return (
        metadata["uid"],
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        annotations.get(names.ANNOTATION_RESTARTED_AT),
        activation.get("requestTime"),
    )
