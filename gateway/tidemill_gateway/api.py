"""The connection to the API server: one way to read a document, one way to read a stream.

Knows kubernetes.aio's configuration, authentication and errors. Refuses to know what is read.
"""

import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from tidemill_gateway.api_error import ApiError
from tidemill_operator import names

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
WRITE_SECONDS = 10.0
APPLY = "application/apply-patch+yaml"
MAX_ERROR_BYTES = 4096


class KubernetesApi:
    """An ApiReader over kubernetes.aio."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, path: str, query: dict[str, str], accept: str) -> dict[str, Any]:
        """Fetch one JSON document."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            async with await self._request(path, query, accept, timeout) as response:
                document = json.loads(await response.read())
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiError(0, _describe(error)) from error
        if not isinstance(document, dict):
            raise ApiError(0, "the answer is no JSON object")
        return document

    async def stream(
        self, path: str, query: dict[str, str], accept: str, *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Fetch the chunks of an endless answer; silence for this long is an ApiError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        try:
            async with await self._request(path, query, accept, timeout) as response:
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, _describe(error)) from error

    async def apply_status(self, manifest: dict[str, Any]) -> None:
        """Server-side apply the status of an InferenceService as the gateway."""
        metadata = manifest["metadata"]
        path = (
            f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{metadata['namespace']}"
            f"/{names.PLURAL}/{metadata['name']}/status"
        )
        headers = {"Accept": "application/json", "Content-Type": APPLY}
        method, url, headers, body, _ = await self._client.param_serialize(
            method="PATCH",
            resource_path=path,
            query_params=[("fieldManager", names.GATEWAY_FIELD_MANAGER), ("force", "true")],
            header_params=headers,
            body=manifest,
            auth_settings=["BearerToken"],
        )
        timeout = aiohttp.ClientTimeout(total=WRITE_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            async with response:
                text = (await response.content.read(MAX_ERROR_BYTES)).decode(errors="replace")
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, _describe(error)) from error
        if response.status >= 300:
            raise ApiError(response.status, _message_in(text) or response.reason or "")

    async def _request(
        self, path: str, query: dict[str, str], accept: str, patience: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        method, url, headers, _, _ = await self._client.param_serialize(
            method="GET",
            resource_path=path,
            query_params=list(query.items()),
            header_params={"Accept": accept},
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(method, url, headers, _request_timeout=patience)
        response: aiohttp.ClientResponse = answer.response
        if response.status != 200:
            async with response:
                text = (await response.content.read(MAX_ERROR_BYTES)).decode(errors="replace")
            raise ApiError(response.status, _message_in(text) or response.reason or "")
        return response


async def connect() -> KubernetesApi:
    """Use the pod's service account or, outside a cluster, the kubeconfig."""
    try:
        load_incluster_config()  # type: ignore[no-untyped-call]
        logger.info("using the service account of this pod")
    except ConfigException:
        await load_kube_config()  # type: ignore[no-untyped-call]
        logger.info("not in a cluster: using the kubeconfig")
    return KubernetesApi(ApiClient())


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _message_in(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return text.strip()[:200]
    return str(document.get("message") or "") if isinstance(document, dict) else ""
