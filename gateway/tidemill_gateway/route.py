"""Which service a request is for.

Knows paths, hosts and model names, and the services that claim them. Refuses to know replicas, bodies and
sockets. The order: the path `/{namespace}/{name}/v1/...`, then the host, then the bare model name, which
belongs to the oldest service that claims it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from tidemill_gateway.objects import Service

MODELS_PATH = "/v1/models"
MAX_NAMES_IN_MESSAGE = 10
MAX_KNOWN_ADDRESSES = 1024


class RefusalKind(Enum):
    """Why no service gets a request."""

    UNKNOWN_PATH = "unknown_path"
    UNKNOWN_SERVICE = "unknown_service"
    UNKNOWN_MODEL = "unknown_model"
    MODEL_MISSING = "model_missing"
    AMBIGUOUS_HOST = "ambiguous_host"
    WRONG_METHOD = "wrong_method"


@dataclass(frozen=True, kw_only=True, slots=True)
class RouteRequest:
    """What routing looks at: raw path, Host header, method, and the model named in the body, if any."""

    method: str
    path: str
    host: str
    model: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The service that gets the request, and the path to ask its engine for."""

    service: Service
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why no service gets the request, in words for the client."""

    kind: RefusalKind
    message: str
    allow: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Redirect:
    """The page of a service was asked for without the final slash that its relative links need."""

    location: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelList:
    """The gateway answers by itself: with every claimed model, or with the one that was asked for."""

    model: str | None = None


Routed = Target | Refusal | Redirect | ModelList


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """Who owns which address, name and host; where several want one, the oldest service has it.

    `known` keeps what methods, paths and hosts meant under these claims, since clients ask for few.
    """

    by_address: Mapping[tuple[str, str], Service]
    by_model: Mapping[str, Service]
    by_host: Mapping[str, Service]
    num_named: Mapping[str, int]
    known: dict[tuple[str, str, str], Target | Refusal | Redirect | None] = field(
        default_factory=dict, compare=False, repr=False
    )


def build_claims(services_by_age: Iterable[Service]) -> Claims:
    """Settle all claims; `services_by_age` goes from the oldest to the youngest."""
    by_address: dict[tuple[str, str], Service] = {}
    by_model: dict[str, Service] = {}
    by_host: dict[str, Service] = {}
    num_named: dict[str, int] = {}
    for service in services_by_age:
        by_address.setdefault((service.namespace, service.name), service)
        num_named[service.name] = num_named.get(service.name, 0) + 1
        for model in service.served_names:
            by_model.setdefault(model, service)
        for host in service.hosts:
            by_host.setdefault(host, service)
    return Claims(by_address=by_address, by_model=by_model, by_host=by_host, num_named=num_named)


def needs_model(request: RouteRequest, claims: Claims) -> bool:
    """Say whether the body must be read for its model before `route` can decide."""
    return request.method == "POST" and not isinstance(_address(request, claims), Refusal | Redirect)


def route(request: RouteRequest, claims: Claims) -> Routed:
    """Decide who answers a request."""
    addressed = _address(request, claims)
    if isinstance(addressed, Target):
        return _check_model(request, addressed) if request.method == "POST" else addressed
    if addressed is not None:
        return addressed
    return _route_by_model(request, claims)


def models_in(claims: Claims) -> list[dict[str, object]]:
    """Write every claimed model as OpenAI's model object, by name."""
    return [model_object(name, claims.by_model[name]) for name in sorted(claims.by_model)]


def model_object(name: str, service: Service) -> dict[str, object]:
    """Write one model as OpenAI's model object."""
    try:
        created = int(datetime.fromisoformat(service.created).timestamp())
    except ValueError:
        created = 0
    return {"id": name, "object": "model", "created": created, "owned_by": "tidemill"}


def unknown_model(model: str, known: Sequence[str]) -> Refusal:
    """Refuse a model in words that say which ones exist."""
    shown = ", ".join(f"`{name}`" for name in sorted(known)[:MAX_NAMES_IN_MESSAGE])
    more = len(known) - MAX_NAMES_IN_MESSAGE
    listed = f"{shown} and {more} more" if more > 0 else shown or "no model yet"
    asked = model if len(model) <= 100 else f"{model[:100]}…"
    return Refusal(
        kind=RefusalKind.UNKNOWN_MODEL, message=f"The model `{asked}` does not exist. Served here: {listed}."
    )


def _address(request: RouteRequest, claims: Claims) -> Target | Refusal | Redirect | None:
    """Find a service by path, then by host; `None` leaves the choice to the model name."""
    key = (request.method, request.path, request.host)
    try:
        return claims.known[key]
    except KeyError:
        found = _find_address(request, claims)
    if len(claims.known) >= MAX_KNOWN_ADDRESSES:
        claims.known.clear()  # somebody asks for ever new paths
    claims.known[key] = found
    return found


def _find_address(request: RouteRequest, claims: Claims) -> Target | Refusal | Redirect | None:
    if not _is_plain(request.path):
        return Refusal(kind=RefusalKind.UNKNOWN_PATH, message="The path is not a plain one.")
    by_path = _by_path(request, claims)
    if by_path is not None:
        return by_path
    service = _by_host(request.host, claims)
    if service is not None and (request.path == "/" or request.path.startswith("/v1/")):
        return _target(request, service, request.path)
    if not request.path.startswith("/v1/"):
        return Refusal(
            kind=RefusalKind.UNKNOWN_PATH,
            message=f"Nothing is at {request.path[:200]}. Ask for /v1/... or /{{namespace}}/{{name}}/v1/...",
        )
    return None


def _by_path(request: RouteRequest, claims: Claims) -> Target | Refusal | Redirect | None:
    parts = request.path.split("/", 3)
    if len(parts) < 3 or not parts[1] or not parts[2]:
        return None
    namespace, name = parts[1], parts[2]
    rest = f"/{parts[3]}" if len(parts) == 4 else ""
    if not rest.startswith("/v1/") and (rest not in ("", "/") or namespace == "v1"):
        return None
    service = claims.by_address.get((namespace, name))
    if service is None:
        if namespace == "v1" or not rest:
            return None
        return Refusal(
            kind=RefusalKind.UNKNOWN_SERVICE,
            message=f"There is no InferenceService {name[:100]} in the namespace {namespace[:100]}.",
        )
    if not rest:
        return Redirect(location=f"{name}/")
    return _target(request, service, rest)


def _by_host(host: str, claims: Claims) -> Service | None:
    plain = _plain_host(host)
    service = claims.by_host.get(plain)
    if service is not None:
        return service
    name, _, rest = plain.partition(".")
    namespace, _, domain = rest.partition(".")
    if domain and domain != "svc" and not domain.startswith("svc."):
        return None
    return claims.by_address.get((namespace, name))


def _target(request: RouteRequest, service: Service, path: str) -> Target | Refusal:
    allowed = ("GET", "HEAD") if path in ("/", MODELS_PATH) else ("GET", "HEAD", "POST")
    if request.method not in allowed:
        return _wrong_method(request, ", ".join(allowed))
    return Target(service=service, path=path)


def _check_model(request: RouteRequest, target: Target) -> Target | Refusal:
    if request.model is None or request.model in target.service.served_names:
        return target
    return unknown_model(request.model, target.service.served_names)


def _route_by_model(request: RouteRequest, claims: Claims) -> Routed:
    if request.path == MODELS_PATH or request.path.startswith(f"{MODELS_PATH}/"):
        if request.method not in ("GET", "HEAD"):
            return _wrong_method(request, "GET, HEAD")
        return ModelList(model=request.path[len(MODELS_PATH) + 1 :] or None)
    if request.method != "POST":
        return _wrong_method(request, "POST")
    if request.model is None:
        return Refusal(kind=RefusalKind.MODEL_MISSING, message="The body names no model: give `model`.")
    service = claims.by_model.get(request.model)
    if service is None:
        return unknown_model(request.model, tuple(claims.by_model))
    return _check_short_host(request, service, claims) or Target(service=service, path=request.path)


def _check_short_host(request: RouteRequest, chosen: Service, claims: Claims) -> Refusal | None:
    """Refuse a host that is a service's bare name, unless it can only mean the service chosen by model.

    A client that asks `http://chat/v1` means the `chat` of its own namespace, which is not known here; its
    prompt must not end in another namespace.
    """
    host = _plain_host(request.host)
    num_meant = claims.num_named.get(host, 0)
    if host == "localhost" or num_meant == 0 or (num_meant == 1 and chosen.name == host):
        return None
    return Refusal(
        kind=RefusalKind.AMBIGUOUS_HOST,
        message=f"The host {host} does not say which namespace is meant; use {host}.<namespace>.",
    )


def _wrong_method(request: RouteRequest, allow: str) -> Refusal:
    return Refusal(
        kind=RefusalKind.WRONG_METHOD,
        message=f"{request.method} is not possible here; use {allow}.",
        allow=allow,
    )


def _is_plain(path: str) -> bool:
    """Say whether a raw path has no segments that an engine could read otherwise: empty, dots, escapes."""
    lowered = path.lower()
    if "\\" in path or "%2f" in lowered or "%5c" in lowered or "%2e" in lowered:
        # A model id with a slash is asked for as /v1/models/org%2Fname; nothing else needs the escape.
        return lowered.startswith(f"{MODELS_PATH}/") and "%2e" not in lowered and "%5c" not in lowered
    segments = path.split("/")[1:]
    return all(segment not in ("", ".", "..") for segment in segments[:-1]) and segments[-1] not in (
        ".",
        "..",
    )


def _plain_host(host: str) -> str:
    """Give a Host header in lower case, without its port and the root's dot."""
    lowered = host.strip().lower()
    if lowered.startswith("["):
        return lowered.partition("]")[0].lstrip("[")
    return lowered.partition(":")[0].rstrip(".")
