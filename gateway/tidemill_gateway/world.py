"""What the gateway believes about the cluster: services, and which replicas are theirs.

Knows how API objects become small frozen values and how watch events change them. Refuses to know how the
events arrive, and which replica a request gets: values in, a new `World` out.

A pod belongs to a service only if its owner chain pod → ReplicaSet → Deployment → InferenceService holds
link by link, by UID and inside one namespace; labels alone prove nothing, since anyone who may create pods
may write them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from tidemill_gateway.keys import KeyRing
from tidemill_gateway.objects import (
    Item,
    KeySecret,
    Kind,
    Link,
    Pod,
    Service,
)
from tidemill_operator import names

Parent = TypeVar("Parent", Service, Link)


@dataclass(frozen=True, kw_only=True)
class World:
    """All that was seen, by UID; the indexes are computed once per world."""

    services: Mapping[str, Service] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    replica_sets: Mapping[str, Link] = field(default_factory=dict)
    deployments: Mapping[str, Link] = field(default_factory=dict)
    gateways: Mapping[str, Pod] = field(default_factory=dict)
    keys: Mapping[str, KeySecret] = field(default_factory=dict)

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

    @cached_property
    def num_gateways(self) -> int:
        """Count the gateways that share the work, this one at least."""
        return max(sum(pod.ready and not pod.terminating for pod in self.gateways.values()), 1)

    def key_ring(self, service: Service) -> KeyRing | None:
        """Give the keys of a service, or None while the operator has projected none."""
        for secret in self.keys.values():
            return secret.rings.by_service.get(service.key)
        return None

    def service_of(self, pod: Pod) -> Service | None:
        """Follow a pod's owner chain to the service that it belongs to."""
        replica_set = _follow(self.replica_sets, pod, kind="ReplicaSet", group="apps")
        if replica_set is None:
            return None
        deployment = _follow(self.deployments, replica_set, kind="Deployment", group="apps")
        if deployment is None:
            return None
        return _follow(self.services, deployment, kind=names.KIND, group=names.GROUP)


def replace_all(world: World, kind: Kind, namespace: str | None, objects: Iterable[Item]) -> World:
    """Put a fresh list in the place of everything of a kind in a namespace (`None` = in all of them)."""
    old: Mapping[str, Item] = _of_kind(world, kind)
    kept = {uid: item for uid, item in old.items() if namespace is not None and item.namespace != namespace}
    return _with_kind(world, kind, kept | {item.uid: item for item in objects})


def put(world: World, kind: Kind, item: Item) -> World:
    """Add an object, or take its newer state; an unchanged one gives the same world back."""
    old: Mapping[str, Item] = _of_kind(world, kind)
    if old.get(item.uid) == item:
        return world
    return _with_kind(world, kind, {**old, item.uid: item})


def remove(world: World, kind: Kind, uid: str) -> World:
    """Forget an object."""
    old: Mapping[str, Item] = _of_kind(world, kind)
    if uid not in old:
        return world
    return _with_kind(world, kind, {key: item for key, item in old.items() if key != uid})


FIELDS = {
    Kind.SERVICES: "services",
    Kind.PODS: "pods",
    Kind.REPLICA_SETS: "replica_sets",
    Kind.DEPLOYMENTS: "deployments",
    Kind.GATEWAYS: "gateways",
    Kind.KEYS: "keys",
}


def _of_kind(world: World, kind: Kind) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(world, FIELDS[kind])
    return found


def _with_kind(world: World, kind: Kind, items: Mapping[str, Any]) -> World:
    return replace(world, **{FIELDS[kind]: items})


def _follow(found: Mapping[str, Parent], child: Pod | Link, *, kind: str, group: str) -> Parent | None:
    owner = child.owner
    if owner is None or owner.kind != kind or owner.group != group:
        return None
    parent = found.get(owner.uid)
    return parent if parent is not None and parent.namespace == child.namespace else None
