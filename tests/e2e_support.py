"""What the end-to-end tests share: services to apply, waiting for them, and clients of the ingress."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from harness.errors import HarnessError
from harness.kubectl import PATIENCE_SECONDS
from openai import AsyncOpenAI

if TYPE_CHECKING:
    from harness.session import TestCluster

API_VERSION = "serving.tidemill.dev/v1alpha1"
OWNED_KINDS = (
    "pods,deployments,replicasets,services,endpointslices,ingresses,poddisruptionbudgets,networkpolicies,"
    "controllerrevisions,secrets"
)
Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """One namespace of a cluster on which our chart is installed."""

    cluster: TestCluster
    name: str

    def apply_sim(self, name: str, image: str, **fields: Any) -> None:
        """Apply a service on the fake model, reached under `self.host(name)`."""
        service = make_sim(name, image, self.host(name), **fields)
        self.cluster.kubectl("apply", "-n", self.name, "-f", "-", stdin=json.dumps(service))

    def host(self, name: str) -> str:
        """Return a host name that no service of another namespace has, one still going away included."""
        return f"{name}.{self.name}.test"

    def wait_ready(self, name: str, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until a service is Ready."""
        self.cluster.kubectl(
            "wait",
            "-n",
            self.name,
            "--for=condition=Ready",
            f"--timeout={timeout_seconds:.0f}s",
            f"infsvc/{name}",
        )

    def service(self, name: str) -> Object:
        """Return a service as the API shows it."""
        return self.cluster.kubectl.get("infsvc", "-n", self.name, name)

    def condition(self, name: str, kind: str) -> Object:
        """Return one condition of a service, empty while it is not there."""
        conditions = self.service(name).get("status", {}).get("conditions", [])
        return next((dict(c) for c in conditions if c["type"] == kind), {})

    def pods(self, service: str) -> list[Object]:
        """Return the engine pods of a service that are not being deleted."""
        selector = f"serving.tidemill.dev/service={service}"
        found = self.cluster.kubectl.items("pods", "-n", self.name, "-l", selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def owned(self) -> list[str]:
        """Return what exists in the namespace beyond what every namespace has."""
        found = self.cluster.kubectl("get", OWNED_KINDS, "-n", self.name, "-o", "name").stdout
        return found.split()

    def client(self, host: str) -> AsyncOpenAI:
        """Return the official client, pointed at the ingress under a host name.

        Each request has a connection of its own: an nginx that reloads its configuration, because some other
        Ingress came or went, closes the kept ones, perhaps just as a request is written to one.
        """
        if self.cluster.ingress_url is None:
            pytest.skip("the existing cluster was given no TIDEMILL_TEST_INGRESS_URL")
        return AsyncOpenAI(
            base_url=f"{self.cluster.ingress_url}/v1",
            api_key="none",
            default_headers={"Host": host, "Connection": "close"},
            max_retries=0,
            timeout=120,
        )


def make_sim(name: str, image: str, host: str, *, uri: str = "sim://demo?step_ms=5", **spec: Any) -> Object:
    """Return a service on the fake model, reached by a host name."""
    body: Object = {
        "model": {"uri": uri},
        "engine": {"image": image},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "replicas": 1,
        "routing": {"ingress": {"className": "nginx", "host": host}},
        "drain": {"timeout": "5s"},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {**body, **spec},
    }


def http_session(**options: Any) -> aiohttp.ClientSession:
    """Return a session for the ingress that keeps no connections, for the reason at `Namespace.client`."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True), **options)


def in_full(error: BaseException) -> str:
    """Return an error with what was behind it: a client's own words may be no more than that it failed."""
    causes = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return " <- ".join(causes)


async def wait_routed(client: AsyncOpenAI, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the ingress sends a host to a service, which it learns of a moment after Ready."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            await client.models.list()
        except Exception as error:
            if time.monotonic() > deadline:
                raise HarnessError(f"the ingress does not reach the service: {error}") from error
        else:
            return
