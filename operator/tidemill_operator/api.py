"""Plain JSON requests to the Kubernetes API over the client of `kubernetes.aio`.

Knows where each kind lives, server-side apply, preconditions and error answers. Refuses to know what an
InferenceService is: whoever calls decides what to read and write.
"""

import json
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from tidemill_operator import metrics, names
from tidemill_operator.errors import ApiError, OperatorError

logger = logging.getLogger(__name__)

Object = dict[str, Any]

REQUEST_TIMEOUT_SECONDS: Final = 20.0
PAGE_SIZE: Final = 500
CONNECT_SECONDS: Final = 10.0
WATCH_SECONDS: Final = 300
# Bookmarks come every minute; a connection that is silent for longer is dead.
MAX_SILENCE_SECONDS: Final = 120.0
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
_AS_OPERATOR: Final[Mapping[str, str]] = {"fieldManager": names.FIELD_MANAGER}
_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "ControllerRevision": ("/apis/apps/v1", "controllerrevisions"),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses"),
    "HTTPRoute": (f"/apis/{names.GATEWAY_API_GROUP}/v1", "httproutes"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    names.KIND: (f"/apis/{names.API_VERSION}", names.PLURAL),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one object lives."""

    kind: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Give the object's path below the API server's address."""
        return f"{collection_path(self.kind, self.namespace)}/{quote(self.name, safe='')}"


def collection_path(kind: str, namespace: str | None) -> str:
    """Give the path of all objects of a kind in a namespace, or in all."""
    prefix, plural = _PLACES[kind]
    if namespace is None:
        return f"{prefix}/{plural}"
    return f"{prefix}/namespaces/{quote(namespace, safe='')}/{plural}"


async def load_configuration() -> Configuration:
    """Find the API server: KUBECONFIG when set, else the pod's service account, else ~/.kube/config."""
    configuration = Configuration()
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if os.environ.get("KUBECONFIG") or not in_pod:
            file = os.environ.get("KUBECONFIG") or "~/.kube/config"
            await load_kube_config(file, client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException as error:
        raise OperatorError(f"cannot tell how to reach the Kubernetes API: {error}") from error
    # Each watch holds a connection; the work queue bounds all other requests.
    configuration.connection_pool_maxsize = 0
    return configuration


class Api:
    """One connection pool to the API server; every method is one request, or one per page."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, place: Place) -> Object | None:
        """Read one object; None when there is none."""
        try:
            return await self._request("GET", place.path)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def get_metadata(self, place: Place) -> Object | None:
        """Read one object's metadata and nothing that it holds; None when there is none."""
        try:
            return await self._request("GET", place.path, accept=_METADATA_ONLY)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def is_served(self, api_version: str, plural: str) -> bool:
        """Tell whether the API server knows a resource."""
        try:
            answer = await self._request("GET", f"/apis/{api_version}")
        except ApiError as error:
            if error.is_not_found:
                return False
            raise
        return any(resource.get("name") == plural for resource in answer.get("resources") or ())

    async def list_all(self, kind: str, namespace: str | None, selector: str) -> tuple[list[Object], str]:
        """Read all objects of a kind that a selector chooses, page by page, and the version of the list."""
        query = {"labelSelector": selector, "limit": str(PAGE_SIZE)}
        items: list[Object] = []
        while True:
            answer = await self._request("GET", collection_path(kind, namespace), query=query)
            items.extend(answer["items"])
            following = answer["metadata"].get("continue")
            if not following:
                return items, str(answer["metadata"].get("resourceVersion", ""))
            query["continue"] = following

    async def watch(
        self, kind: str, namespace: str | None, selector: str, version: str
    ) -> AsyncGenerator[Object, None]:
        """Read changes since a version until the server ends the watch; a cut connection is an ApiError."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = collection_path(kind, namespace)
        patience = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=MAX_SILENCE_SECONDS
        )
        headers = {"Accept": "application/json"}
        try:
            serialized = await self._client.param_serialize(
                "GET", path, query_params=list(query.items()), header_params=headers,
                auth_settings=["BearerToken"],
            )  # fmt: skip
            answer = await self._client.call_api(*serialized, _request_timeout=patience)
            async with answer.response as response:
                metrics.API_REQUESTS.labels("WATCH", kind, str(response.status)).inc()
                if response.status != 200:
                    _decode(response.status, await response.read(), f"WATCH {path}")
                async for line in response.content:
                    yield _decode_event(line, path)
        except (TimeoutError, aiohttp.ClientError, ApiException, OSError) as error:
            raise _no_answer(f"WATCH {path}", error) from error

    async def apply(self, manifest: Object, *, is_dry_run: bool = False) -> Object:
        """Server-side apply one object as the operator, taking over fields that others wrote."""
        query = {**_apply_query(), "dryRun": "All"} if is_dry_run else _apply_query()
        path = _place_of(manifest).path
        return await self._request("PATCH", path, query=query, body=manifest, content_type=_APPLY)

    async def apply_status(self, manifest: Object) -> Object:
        """Server-side apply the status subresource; the object must exist."""
        path = f"{_place_of(manifest).path}/status"
        return await self._request("PATCH", path, query=_apply_query(), body=manifest, content_type=_APPLY)

    async def create(self, manifest: Object, *, kind: str) -> Object:
        """Create one object; 409 when it exists."""
        path = collection_path(kind, manifest["metadata"]["namespace"])
        return await self._request("POST", path, query=_AS_OPERATOR, body=manifest)

    async def replace(self, manifest: Object) -> Object:
        """Replace one object at the resourceVersion that it carries; 409 when it has moved on."""
        return await self._request("PUT", _place_of(manifest).path, query=_AS_OPERATOR, body=manifest)

    async def merge(self, place: Place, patch: Object) -> Object:
        """Merge fields into one object that exists."""
        return await self._request("PATCH", place.path, query=_AS_OPERATOR, body=patch, content_type=_MERGE)

    async def delete(self, place: Place, preconditions: Mapping[str, str]) -> None:
        """Delete exactly the object that was seen; one that is gone or has changed is left alone."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": dict(preconditions),
        }
        try:
            await self._request("DELETE", place.path, body=body)
        except ApiError as error:
            if not error.is_not_found:
                raise

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        request = f"{method} {path}"
        headers = {"Accept": accept, "Content-Type": content_type}
        try:
            serialized = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*serialized, _request_timeout=REQUEST_TIMEOUT_SECONDS)
            content = await answer.read()  # type: ignore[no-untyped-call]
        except (TimeoutError, aiohttp.ClientError, ApiException, OSError) as error:
            metrics.API_REQUESTS.labels(method, _kind_in(path), "0").inc()
            raise _no_answer(request, error) from error
        metrics.API_REQUESTS.labels(method, _kind_in(path), str(answer.status)).inc()
        return _decode(answer.status, content, request)


def _place_of(manifest: Object) -> Place:
    metadata = manifest["metadata"]
    return Place(kind=manifest["kind"], namespace=metadata["namespace"], name=metadata["name"])


def _apply_query() -> dict[str, str]:
    return {**_AS_OPERATOR, "force": "true", "fieldValidation": "Strict"}


def _kind_in(path: str) -> str:
    """Name the kind that a path is about, for a metric."""
    parts = set(path.split("/"))
    return next((kind for kind, (_, plural) in _PLACES.items() if plural in parts), "other")


def _no_answer(request: str, error: Exception) -> ApiError:
    return ApiError(status=0, reason="NoAnswer", message=f"{type(error).__name__}: {error}", request=request)


def _decode_event(line: bytes, path: str) -> Object:
    try:
        event = json.loads(line)
        if isinstance(event["type"], str) and isinstance(event["object"], dict):
            return dict(event)
    except (ValueError, KeyError, TypeError):
        pass
    message = f"an event that cannot be read: {line[:200]!r}"
    raise ApiError(status=0, reason="BadEvent", message=message, request=f"WATCH {path}")


def _decode(status: int, content: bytes, request: str) -> Object:
    parsed = _object_in(content)
    if status < 300 and parsed is not None:
        return parsed
    text = content[:500].decode(errors="replace")
    if status < 300:
        raise ApiError(status=0, reason="BadAnswer", message=f"no JSON object: {text!r}", request=request)
    told = parsed or {}
    raise ApiError(
        status=status,
        reason=str(told.get("reason") or "Unknown"),
        message=str(told.get("message") or text),
        request=request,
    )


def _object_in(content: bytes) -> Object | None:
    try:
        parsed = json.loads(content)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
