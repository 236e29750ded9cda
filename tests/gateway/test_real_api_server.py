"""The gateway against a real API server, with the rights that the chart gives it and no others."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from harness.kubectl import wait_until
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config_from_dict

from gateway.builders import owned_by
from tidemill_gateway.api import KubernetesApi
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Pod
from tidemill_gateway.state import ClusterState
from tidemill_gateway.watch import Watch, WatchTiming, sources
from tidemill_gateway.world import World
from tidemill_operator import names

if TYPE_CHECKING:
    from harness.session import TestCluster

pytestmark = pytest.mark.cluster

CHART = Path(__file__).resolve().parents[2] / "charts" / "tidemill"


@pytest.fixture
def gateway_kubeconfig(crds: "TestCluster", namespace: str) -> dict[str, Any]:
    """Give a kubeconfig of the gateway's own ServiceAccount, bound as the chart binds it."""
    rights = crds.helm(
        "template", namespace, CHART, "--namespace", namespace, "--show-only", "templates/gateway-rbac.yaml",
        "--set", f"watchNamespaces={{{namespace}}}", "--set", f"fullnameOverride={namespace}",
    ).stdout  # fmt: skip
    crds.kubectl.apply(rights)
    token = crds.kubectl("create", "token", f"{namespace}-gateway", "--namespace", namespace).stdout.strip()
    config: dict[str, Any] = yaml.safe_load(crds.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    return config


@asynccontextmanager
async def watching(
    kubeconfig: dict[str, Any], namespace: str, metrics: GatewayMetrics
) -> AsyncIterator[ClusterState]:
    configuration = Configuration()
    await load_kube_config_from_dict(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
    api = KubernetesApi(ApiClient(configuration))
    watched = sources((namespace,))
    state = ClusterState(source.label for source in watched)
    timing = WatchTiming()
    tasks = [
        asyncio.ensure_future(
            Watch(source=source, api=api, state=state, metrics=metrics, timing=timing).run()
        )
        for source in watched
    ]
    try:
        yield state
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await api.close()


async def until(state: ClusterState, condition: Callable[[World], Any]) -> None:
    while not condition(state.world):  # noqa: ASYNC110 - a world has no event; the test's timeout is the bound
        await asyncio.sleep(0.02)


def service_manifest(namespace: str) -> dict[str, Any]:
    spec = {"model": {"uri": "sim://test"}, "replicas": 1}
    metadata = {"name": "chat", "namespace": namespace}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}


def pod_spec() -> dict[str, Any]:
    ports = [{"name": names.ENGINE_PORT_NAME, "containerPort": names.ENGINE_PORT}]
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": names.ENGINE_CONTAINER, "image": "none", "ports": ports, "securityContext": security}
    within = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"containers": [container], "securityContext": within}


def deployment_manifest(namespace: str, service_uid: str) -> dict[str, Any]:
    owners = [{**owned_by(names.API_VERSION, names.KIND, service_uid)[0], "name": "chat"}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "chat-0badcafe",
            "namespace": namespace,
            "labels": names.revision_labels("chat", "0badcafe"),
            "ownerReferences": owners,
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": names.revision_selector_labels("chat", "0badcafe")},
            "template": {"metadata": {"labels": names.pod_labels("chat", "0badcafe")}, "spec": pod_spec()},
        },
    }


def make_ready(cluster: "TestCluster", namespace: str, pod: str, address: str) -> None:
    """Do what a kubelet would: there is none on a control plane."""
    status = {
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    patch = json.dumps({"status": status})
    where = ("--namespace", namespace, "--subresource=status", "--type=merge", "-p", patch)
    cluster.kubectl("patch", "pod", pod, *where)


async def test_a_service_and_its_ready_replica_are_found_and_a_forged_pod_is_not(
    crds: "TestCluster", namespace: str, gateway_kubeconfig: dict[str, Any]
) -> None:
    kubectl = crds.kubectl
    kubectl.apply(service_manifest(namespace))
    service_uid = kubectl.get("infsvc", "chat", "--namespace", namespace)["metadata"]["uid"]
    forged = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "forged",
            "namespace": namespace,
            "labels": names.pod_labels("chat", "0badcafe"),
        },
        "spec": pod_spec(),
    }
    # It names a controller, so that the ReplicaSet does not adopt it for its labels.
    forged["metadata"]["ownerReferences"] = [  # type: ignore[index]
        {**owned_by(names.API_VERSION, names.KIND, service_uid)[0], "name": "chat"}
    ]
    kubectl.apply(forged)
    make_ready(crds, namespace, "forged", "127.0.0.9")

    def replicas(world: World) -> list[Pod]:
        return [pod for service in world.services.values() for pod in world.replicas(service)]

    async with watching(gateway_kubeconfig, namespace, GatewayMetrics()) as state:
        await until(state, lambda _: state.is_complete)
        await until(state, lambda world: any(pod.ready for pod in world.pods.values()))
        kubectl.apply(deployment_manifest(namespace, service_uid))
        await until(state, replicas)
        (replica,) = replicas(state.world)
        assert not replica.takes_requests
        make_ready(crds, namespace, replica.name, "127.0.0.5")
        await until(state, lambda world: replicas(world)[0].takes_requests)
        assert [pod.address for pod in replicas(state.world)] == ["127.0.0.5"]
        kubectl(
            "label",
            "pod",
            replica.name,
            "--namespace",
            namespace,
            "--overwrite",
            f"{names.LABEL_ROUTABLE}=false",
        )
        await until(state, lambda world: not replicas(world)[0].takes_requests)
        kubectl("delete", "infsvc", "chat", "--namespace", namespace, "--wait=false")
        await until(state, lambda world: not world.services)
        assert replicas(state.world) == []


async def test_a_gateway_without_rights_goes_on_asking_until_it_has_them(
    crds: "TestCluster", namespace: str, gateway_kubeconfig: dict[str, Any]
) -> None:
    binding = crds.kubectl.get("rolebinding", f"{namespace}-gateway", "--namespace", namespace)
    for name in (f"{namespace}-gateway", f"{namespace}-gateway-own"):
        crds.kubectl("delete", "rolebinding", name, "--namespace", namespace)
    account = f"--as=system:serviceaccount:{namespace}:{namespace}-gateway"
    may_list = ("auth", "can-i", "list", "pods", "--namespace", namespace, account)
    wait_until("the rights are gone", lambda: crds.kubectl(*may_list, check=False).returncode != 0)
    metrics = GatewayMetrics()

    def num_refused() -> float:
        labels = {"resource": "pods", "reason": "error"}
        return metrics.registry.get_sample_value("tidemill_gateway_watch_restarts_total", labels) or 0.0

    async with watching(gateway_kubeconfig, namespace, metrics) as state:
        await until(state, lambda _: num_refused() >= 2)
        assert not state.is_complete
        for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
            binding["metadata"].pop(field, None)
        crds.kubectl.apply(binding)
        await until(state, lambda _: state.is_complete)
