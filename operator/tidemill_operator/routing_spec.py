"""What a person wrote under spec.routing of how a service is reached from outside, as frozen values.

Pure. Knows the two ways: an Ingress with one host, or a route of the Gateway API. Refuses to know what the
gateway does with a request that has arrived.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill_operator.errors import InvalidSpec

Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class IngressSpec:
    """A host name of an Ingress."""

    host: str
    class_name: str | None = None
    tls_secret_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class ParentRef:
    """A Gateway, or one listener of it; without a namespace it is one beside the service."""

    name: str
    namespace: str | None = None
    section_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class RouteSpec:
    """The Gateways that lead to a service, and under which host names; without any, below its own path."""

    parents: tuple[ParentRef, ...]
    hostnames: tuple[str, ...] = ()


def parse_ingress(routing: Raw) -> IngressSpec | None:
    """Read spec.routing.ingress; None where there is none."""
    raw = routing.get("ingress")
    if raw is None:
        return None
    host = raw.get("host")
    if not isinstance(host, str) or not host:
        raise InvalidSpec("spec.routing.ingress.host", "is required, for example chat.example.com")
    tls_secret_name = (raw.get("tls") or {}).get("secretName")
    return IngressSpec(host=host, class_name=raw.get("className"), tls_secret_name=tls_secret_name)


def parse_route(routing: Raw) -> RouteSpec | None:
    """Read spec.routing.parentRefs and hostnames; None where there is no route."""
    parents = routing.get("parentRefs")
    hostnames = tuple(routing.get("hostnames") or ())
    if not parents:
        if hostnames:
            raise InvalidSpec("spec.routing.hostnames", "needs spec.routing.parentRefs")
        return None
    if routing.get("ingress") is not None:
        raise InvalidSpec("spec.routing.parentRefs", "must be absent where spec.routing.ingress is given")
    return RouteSpec(
        parents=tuple(
            ParentRef(
                name=parent["name"],
                namespace=parent.get("namespace"),
                section_name=parent.get("sectionName"),
            )
            for parent in parents
        ),
        hostnames=hostnames,
    )


def hosts_of(service: Raw) -> tuple[str, ...]:
    """Give the hosts that a service claims, even when the rest of its spec is invalid."""
    routing = (service.get("spec") or {}).get("routing") or {}
    host = (routing.get("ingress") or {}).get("host")
    return ((host,) if host else ()) + tuple(routing.get("hostnames") or ())
