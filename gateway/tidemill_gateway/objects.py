"""The objects of the API that the gateway looks at, as small frozen values.

Pure. Knows which fields of which kinds routing needs. Refuses to know how objects hang together (`world`
does) and what is decided by them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidemill_gateway.keys import KeyRings, parse_key_rings
from tidemill_gateway.service_spec import (
    Revisions,
    Routing,
    Waking,
    parse_activation,
    parse_revisions,
    parse_routing,
    parse_waking,
    parse_wants_replicas,
)
from tidemill_operator import names

JsonObject = Mapping[str, Any]


class Kind(Enum):
    """The kinds of objects that the world is made of."""

    SERVICES = names.PLURAL
    PODS = "pods"
    REPLICA_SETS = "replicasets"
    DEPLOYMENTS = "deployments"
    GATEWAYS = "gateways"
    KEYS = "keys"

    @property
    def plural(self) -> str:
        """The plural name in the API: gateways are pods, and keys a Secret."""
        return {Kind.GATEWAYS: "pods", Kind.KEYS: "secrets"}.get(self, self.value)


class MalformedObjectError(ValueError):
    """An object of the API lacks what every such object has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The controller that an object names as its owner."""

    uid: str
    kind: str
    group: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """What routing needs of an InferenceService."""

    uid: str
    namespace: str
    name: str
    created: str
    served_names: tuple[str, ...]
    hosts: tuple[str, ...]
    wants_replicas: bool = True
    waking: Waking | None = None
    last_activation: float = 0.0
    routing: Routing = field(default_factory=Routing)
    revisions: Revisions = field(default_factory=Revisions)

    @property
    def key(self) -> tuple[str, str]:
        """Give namespace and name."""
        return (self.namespace, self.name)

    @property
    def age_key(self) -> tuple[str, str, str]:
        """Order services, oldest first; RFC 3339 in UTC sorts as text."""
        return (self.created, self.namespace, self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A ReplicaSet or a Deployment: one link of an owner chain."""

    uid: str
    namespace: str
    owner: Owner | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySecret:
    """The Secret into which the operator projects all keys."""

    uid: str
    namespace: str
    rings: KeyRings


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """What routing needs of a pod, whoever owns it."""

    uid: str
    namespace: str
    name: str
    owner: Owner | None
    address: str
    port: int
    revision: str
    ready: bool
    routable: bool
    terminating: bool

    @property
    def authority(self) -> str:
        """Give host and port as a URL writes them."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def takes_requests(self) -> bool:
        """Say whether new requests may go here."""
        return self.ready and self.routable and not self.terminating and bool(self.address)


Item = Service | Pod | Link | KeySecret


def parse(kind: Kind, raw: JsonObject) -> Item:
    """Read an object of the API; raise MalformedObjectError when it is none."""
    try:
        if kind is Kind.SERVICES:
            return _parse_service(raw)
        if kind in (Kind.PODS, Kind.GATEWAYS):
            return _parse_pod(raw)
        if kind is Kind.KEYS:
            return _parse_keys(raw)
        return _parse_link(raw)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        shown = "" if kind is Kind.KEYS else f": {error}"  # what stands in a Secret stays there
        raise MalformedObjectError(f"{kind.value}: {type(error).__name__}{shown}") from error


def uid_of(raw: JsonObject) -> str:
    """Give an object's UID; raise MalformedObjectError when it has none."""
    try:
        return str(raw["metadata"]["uid"])
    except (KeyError, TypeError) as error:
        raise MalformedObjectError("an object without metadata.uid") from error


def _parse_service(raw: JsonObject) -> Service:
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    name = str(metadata["name"])
    status = raw.get("status") or {}
    served = (spec.get("model") or {}).get("servedNames") or [name]
    hosts = _hosts_of(spec.get("routing") or {})
    if _is_leaving(metadata, status):
        served, hosts = [], ()
    return Service(
        uid=str(metadata["uid"]),
        namespace=str(metadata["namespace"]),
        name=name,
        created=str(metadata.get("creationTimestamp") or ""),
        served_names=tuple(str(served_name) for served_name in served),
        hosts=hosts,
        wants_replicas=parse_wants_replicas(spec),
        waking=parse_waking(spec),
        last_activation=parse_activation(status),
        routing=parse_routing(spec),
        revisions=parse_revisions(spec, status),
    )


def _hosts_of(routing: JsonObject) -> tuple[str, ...]:
    """Give the host names that lead to a service: of its Ingress, or of its route."""
    host = (routing.get("ingress") or {}).get("host")
    return tuple(str(name).lower() for name in (*([host] if host else []), *(routing.get("hostnames") or ())))


def _is_leaving(metadata: JsonObject, status: JsonObject) -> bool:
    """Say whether a service is on its way out and has given its names to those who wait for them."""
    said = [c.get("reason") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    return metadata.get("deletionTimestamp") is not None or said == [names.REASON_NAMESPACE_TERMINATING]


def _parse_keys(raw: JsonObject) -> KeySecret:
    metadata = raw["metadata"]
    rings = parse_key_rings(raw.get("data") or {})
    return KeySecret(uid=str(metadata["uid"]), namespace=str(metadata["namespace"]), rings=rings)


def _parse_link(raw: JsonObject) -> Link:
    metadata = raw["metadata"]
    return Link(uid=str(metadata["uid"]), namespace=str(metadata["namespace"]), owner=_parse_owner(metadata))


def _parse_pod(raw: JsonObject) -> Pod:
    metadata, status = raw["metadata"], raw.get("status") or {}
    conditions = status.get("conditions") or ()
    return Pod(
        uid=str(metadata["uid"]),
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        owner=_parse_owner(metadata),
        address=str(status.get("podIP") or ""),
        port=_engine_port(raw.get("spec") or {}),
        ready=any(found.get("type") == "Ready" and found.get("status") == "True" for found in conditions),
        revision=str((metadata.get("labels") or {}).get(names.LABEL_REVISION) or ""),
        routable=(metadata.get("labels") or {}).get(names.LABEL_ROUTABLE) == names.ROUTABLE_YES,
        terminating=metadata.get("deletionTimestamp") is not None,
    )


def _parse_owner(metadata: JsonObject) -> Owner | None:
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller") is True:
            group, slash, _ = str(reference["apiVersion"]).partition("/")
            return Owner(uid=str(reference["uid"]), kind=str(reference["kind"]), group=group if slash else "")
    return None


def _engine_port(spec: JsonObject) -> int:
    for container in spec.get("containers") or ():
        if container.get("name") == names.ENGINE_CONTAINER:
            for port in container.get("ports") or ():
                if port.get("name") == names.ENGINE_PORT_NAME:
                    return int(port["containerPort"])
    return names.ENGINE_PORT
