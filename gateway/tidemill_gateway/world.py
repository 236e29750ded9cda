"""What the gateway believes about the cluster: services, and which replicas are theirs.

Knows how API objects become small frozen values and how watch events change them. Refuses to know how the
events arrive, and which replica a request gets: values in, a new `World` out.

A pod belongs to a service only if its owner chain pod → ReplicaSet → Deployment → InferenceService holds
link by link, by UID and inside one namespace; labels alone prove nothing, since anyone who may create pods
may write them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

from tidemill_operator import names

JsonObject = Mapping[str, Any]
Item = TypeVar("Item", "Service", "Pod", "Link")


class Kind(Enum):
    """The kinds of objects that the world is made of; the value is the plural name in the API."""

    SERVICES = names.PLURAL
    PODS = "pods"
    REPLICA_SETS = "replicasets"
    DEPLOYMENTS = "deployments"


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
class Pod:
    """What routing needs of a pod, whoever owns it."""

    uid: str
    namespace: str
    name: str
    owner: Owner | None
    address: str
    port: int
    ready: bool
    routable: bool
    terminating: bool

    @property
    def takes_requests(self) -> bool:
        """Say whether new requests may go here."""
        return self.ready and self.routable and not self.terminating and bool(self.address)


@dataclass(frozen=True, kw_only=True)
class World:
    """All that was seen, by UID; the indexes are computed once per world."""

    services: Mapping[str, Service] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    replica_sets: Mapping[str, Link] = field(default_factory=dict)
    deployments: Mapping[str, Link] = field(default_factory=dict)

    @cached_property
    def services_by_age(self) -> tuple[Service, ...]:
        """All services, oldest first."""
        return tuple(sorted(self.services.values(), key=lambda service: service.age_key))

    @cached_property
    def _replicas(self) -> Mapping[str, tuple[Pod, ...]]:
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            service = self.service_of(pod)
            if service is not None:
                found.setdefault(service.uid, []).append(pod)
        return {uid: tuple(sorted(pods, key=lambda pod: pod.uid)) for uid, pods in found.items()}

    def replicas(self, service: Service) -> tuple[Pod, ...]:
        """Give the pods whose owner chain ends at this service, ready or not."""
        return self._replicas.get(service.uid, ())

    def service_of(self, pod: Pod) -> Service | None:
        """Follow a pod's owner chain to the service that it belongs to."""
        replica_set = _follow(self.replica_sets, pod, kind="ReplicaSet", group="apps")
        if replica_set is None:
            return None
        deployment = _follow(self.deployments, replica_set, kind="Deployment", group="apps")
        if deployment is None:
            return None
        return _follow(self.services, deployment, kind=names.KIND, group=names.GROUP)


def replace_all(
    world: World, kind: Kind, namespace: str | None, objects: Iterable[Service | Pod | Link]
) -> World:
    """Put a fresh list in the place of everything of a kind in a namespace (`None` = in all of them)."""
    old: Mapping[str, Service | Pod | Link] = _of_kind(world, kind)
    kept = {uid: item for uid, item in old.items() if namespace is not None and item.namespace != namespace}
    return _with_kind(world, kind, kept | {item.uid: item for item in objects})


def put(world: World, kind: Kind, item: Service | Pod | Link) -> World:
    """Add an object, or take its newer state; an unchanged one gives the same world back."""
    old: Mapping[str, Service | Pod | Link] = _of_kind(world, kind)
    if old.get(item.uid) == item:
        return world
    return _with_kind(world, kind, {**old, item.uid: item})


def remove(world: World, kind: Kind, uid: str) -> World:
    """Forget an object."""
    old: Mapping[str, Service | Pod | Link] = _of_kind(world, kind)
    if uid not in old:
        return world
    return _with_kind(world, kind, {key: item for key, item in old.items() if key != uid})


def parse(kind: Kind, raw: JsonObject) -> Service | Pod | Link:
    """Read an object of the API; raise MalformedObjectError when it is none."""
    try:
        if kind is Kind.SERVICES:
            return _parse_service(raw)
        if kind is Kind.PODS:
            return _parse_pod(raw)
        return _parse_link(raw)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MalformedObjectError(f"{kind.value}: {type(error).__name__}: {error}") from error


def uid_of(raw: JsonObject) -> str:
    """Give an object's UID; raise MalformedObjectError when it has none."""
    try:
        return str(raw["metadata"]["uid"])
    except (KeyError, TypeError) as error:
        raise MalformedObjectError("an object without metadata.uid") from error


def _of_kind(world: World, kind: Kind) -> Mapping[str, Any]:
    return {
        Kind.SERVICES: world.services,
        Kind.PODS: world.pods,
        Kind.REPLICA_SETS: world.replica_sets,
        Kind.DEPLOYMENTS: world.deployments,
    }[kind]


def _with_kind(world: World, kind: Kind, items: Mapping[str, Any]) -> World:
    if kind is Kind.SERVICES:
        return replace(world, services=items)
    if kind is Kind.PODS:
        return replace(world, pods=items)
    if kind is Kind.REPLICA_SETS:
        return replace(world, replica_sets=items)
    return replace(world, deployments=items)


def _follow(found: Mapping[str, Item], child: Pod | Link, *, kind: str, group: str) -> Item | None:
    owner = child.owner
    if owner is None or owner.kind != kind or owner.group != group:
        return None
    parent = found.get(owner.uid)
    return parent if parent is not None and parent.namespace == child.namespace else None


def _parse_service(raw: JsonObject) -> Service:
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    name = str(metadata["name"])
    served = (spec.get("model") or {}).get("servedNames") or [name]
    host = ((spec.get("routing") or {}).get("ingress") or {}).get("host")
    return Service(
        uid=str(metadata["uid"]),
        namespace=str(metadata["namespace"]),
        name=name,
        created=str(metadata.get("creationTimestamp") or ""),
        served_names=tuple(str(served_name) for served_name in served),
        hosts=(str(host).lower(),) if host else (),
    )


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
