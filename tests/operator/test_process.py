"""What the operator makes of services, and what it says of them.

The operator runs as a process on a real API server with controllers and no node, under the chart's
ServiceAccount, with the rights that the chart gives in one namespace and no others. Tests play the kubelet.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until

from chart_release import make_namespace
from operator_process import Account, Operator
from operator_world import World
from tidemill_operator import names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.session import TestCluster

pytestmark = pytest.mark.cluster


def test_a_service_gets_its_children_and_a_status(world: World, start: Callable[[], Operator]) -> None:
    world.apply({"routing": {"ingress": {"host": "chat.example.com"}}})
    start()
    world.wait_for("Ready", "False", "ReplicasStarting")
    kinds = {child["kind"] for child in world.children()}
    assert {
        "Deployment",
        "Service",
        "Secret",
        "ControllerRevision",
        "PodDisruptionBudget",
        "Ingress",
    } <= kinds
    status = world.service()["status"]
    assert status["observedGeneration"] == 1
    assert status["desiredReplicas"] == 2
    assert status["url"] == "http://chat.example.com"
    scaled = world.kubectl("get", *world.scope, "infsvc/chat", "--subresource=scale", "-o", "json")
    assert json.loads(scaled.stdout)["status"]["selector"] == status["selector"]


def test_ready_means_that_replicas_and_gateway_are_ready(world: World, start: Callable[[], Operator]) -> None:
    world.apply()
    start()
    pods = world.pods(world.revision(), 2)
    world.make_ready(pods)
    world.wait_for("Ready", "False", "NoGatewayReady")
    world.make_gateway()
    world.kubectl("wait", *world.scope, "infsvc/chat", "--for=condition=Ready", "--timeout=120s")
    world.wait_for("Progressing", "False", "Settled")
    endpoints = world.kubectl.get(*world.scope, "endpointslice", "chat-gateway")["endpoints"]
    assert [endpoint["addresses"] for endpoint in endpoints] == [["10.1.1.1"]]
    assert world.service()["status"]["readyReplicas"] == 2


def test_a_failing_engine_shows_with_its_own_words(world: World, start: Callable[[], Operator]) -> None:
    world.apply({"replicas": 1})
    start()
    (pod,) = world.pods(world.revision(), 1)
    world.make_fail(pod)
    world.wait_for("Ready", "False", "ModelLoadFailed")
    failure = world.service()["status"]["model"]["lastFailure"]
    assert (failure["message"], failure["pod"], failure["exitCode"]) == ("no such model", pod, 3)
    assert any(e["reason"] == "ModelLoadFailed" and e["type"] == "Warning" for e in world.events())


def test_a_quota_shows_in_the_conditions(world: World, start: Callable[[], Operator]) -> None:
    quota = {"metadata": {"name": "q", "namespace": world.namespace}, "spec": {"hard": {"pods": "0"}}}
    world.kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    world.apply()
    start()
    world.wait_for("Ready", "False", "QuotaExceeded")


def test_gates_queues_and_caches_reach_pods_and_show(world: World, start: Callable[[], Operator]) -> None:
    template = {"spec": {"schedulingGates": [{"name": "example.com/wait"}]}}
    model = {"uri": "hf://org/model", "cache": {"size": "20Gi"}}
    labels = {"kueue.x-k8s.io/queue-name": "team", "team": "not-handed-on"}
    world.apply({"model": model, "template": template}, labels=labels)
    start()
    world.wait_for("Ready", "False", "SchedulingGated")
    claim = world.kubectl.get(*world.scope, "pvc/chat-model-cache")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    (pod, _) = world.kubectl.items("pods", *world.scope, "-l", f"{names.LABEL_SERVICE}=chat")
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "team" not in pod["metadata"]["labels"]
    assert [container["name"] for container in pod["spec"]["initContainers"]] == ["download"]


def test_a_model_in_an_image_becomes_an_image_volume(world: World, start: Callable[[], Operator]) -> None:
    world.apply({"model": {"uri": "oci://registry.example.com/org/model:v1"}, "replicas": 1})
    start()
    version = json.loads(world.kubectl("version", "-o", "json").stdout)["serverVersion"]
    if (int(version["major"]), int(version["minor"])) < (1, 35):
        world.wait_for("Ready", "False", "InvalidTemplate")
        told = {c["type"]: c["message"] for c in world.service()["status"]["conditions"]}
        assert told["Ready"].startswith("oci:// needs a cluster with image volumes")
        assert world.deployments() == {}
        return
    (pod,) = world.pods(world.revision(), 1)
    spec = world.kubectl.get(*world.scope, f"pod/{pod}")["spec"]
    image = {"reference": "registry.example.com/org/model:v1", "pullPolicy": "IfNotPresent"}
    assert {"name": "models", "image": image} in spec["volumes"]


def test_a_deployment_scaled_by_hand_is_put_back(world: World, start: Callable[[], Operator]) -> None:
    world.apply()
    start()
    revision = world.revision()
    world.pods(revision, 2)
    world.kubectl("scale", *world.scope, f"deployment/chat-{revision}", "--replicas=5")
    wait_until(
        "an event that says so",
        lambda: any(e["reason"] == "ReplicasPutBack" for e in world.events()),
    )
    assert world.deployments() == {revision: 2}


def test_kubectl_scale_and_suspension_reach_the_deployment(
    world: World, start: Callable[[], Operator]
) -> None:
    world.apply()
    start()
    revision = world.revision()
    world.kubectl("scale", *world.scope, "infsvc/chat", "--replicas=3")
    world.pods(revision, 3)
    world.kubectl("patch", *world.scope, "infsvc/chat", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    world.pods(revision, 0)
    world.wait_for("Suspended", "True", "Suspended")
    world.wait_for("Ready", "False", "Suspended")
    world.wait_for("Progressing", "False", "Settled")


def test_a_pod_of_someone_else_with_our_labels_counts_for_nothing(
    world: World, start: Callable[[], Operator]
) -> None:
    world.apply({"replicas": 1})
    world.make_gateway()
    start()
    world.make_pod("forged", names.pod_labels("chat", world.revision()))
    world.make_ready(["forged"])
    world.kubectl("scale", *world.scope, "infsvc/chat", "--replicas=2")
    wait_until(
        "the operator to look again",
        lambda: world.service()["status"]["desiredReplicas"] == 2,
    )
    assert world.service()["status"]["readyReplicas"] == 0
    assert world.condition("Ready")[0] == "False"


def test_nothing_of_someone_else_is_taken_over(world: World, start: Callable[[], Operator]) -> None:
    port = {"ports": [{"port": 1234}]}
    metadata = {"name": "chat", "namespace": world.namespace}
    world.kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": port})
    world.apply()
    start()
    world.wait_for("Ready", "False", "NameTaken")
    assert world.deployments() == {}
    assert world.kubectl.get(*world.scope, "service/chat")["spec"]["ports"][0]["port"] == 1234


def test_a_deleted_admin_token_is_made_anew_at_once(world: World, start: Callable[[], Operator]) -> None:
    world.apply()
    start()
    world.wait_for("Ready", "False", "ReplicasStarting")
    before = world.kubectl.get(*world.scope, "secret/chat-admin-token")["data"]["token"]
    world.kubectl("delete", *world.scope, "secret/chat-admin-token")
    made = wait_until(
        "a new Secret",
        lambda: world.kubectl.find(*world.scope, "secret/chat-admin-token"),
    )
    assert made["data"]["token"] != before


def test_deletion_leaves_nothing(world: World, start: Callable[[], Operator]) -> None:
    world.apply({"routing": {"ingress": {"host": "chat.example.com"}}})
    start()
    world.pods(world.revision(), 2)
    world.kubectl("delete", *world.scope, "infsvc/chat", "--timeout=120s")
    wait_until("all children to go", lambda: not world.children(), timeout_seconds=120)


def test_a_service_made_again_at_once_comes_up(world: World, start: Callable[..., Operator]) -> None:
    world.apply()
    start()
    world.pods(world.revision(), 2)
    old = {child["metadata"]["uid"] for child in world.children()}
    world.kubectl("delete", *world.scope, "infsvc/chat", "--wait=false")
    world.apply()
    wait_until(
        "new children alone",
        lambda: len(new := {c["metadata"]["uid"] for c in world.children()}) >= 8 and not new & old,
        timeout_seconds=120,
    )
    world.wait_for("Ready", "False", "ReplicasStarting")


def test_a_service_whose_namespace_is_being_deleted_gives_its_host_away_at_once(
    crds: TestCluster, world: World, tmp_path: Path
) -> None:
    older = World(crds, f"{world.namespace}-older")
    make_namespace(crds, older.namespace)
    account = Account(crds, world.namespace, is_namespaced=False)
    operator = Operator(
        account.write_kubeconfig(tmp_path), world.namespace, tmp_path / "log", is_namespaced=False
    )
    host = {"routing": {"ingress": {"host": "chat.example.com"}}}
    hold = json.dumps({"metadata": {"finalizers": ["example.com/drains"]}})
    release = json.dumps({"metadata": {"finalizers": []}})
    try:
        world.make_gateway()
        older.apply(host)
        (pod, _) = older.pods(older.revision(), 2)
        # A pod that drains for long; the namespace waits for it before anything else goes.
        older.kubectl("patch", *older.scope, "pod", pod, "--type=merge", "-p", hold)
        world.apply(host, name="chat")
        world.wait_for("RouteReady", "False", "HostConflict")
        crds.kubectl("delete", "namespace", older.namespace, "--wait=false")
        world.wait_for("RouteReady", "True", "GatewayReady")
        assert older.condition("Ready") == ("False", "NamespaceTerminating")
        assert older.kubectl.find(*older.scope, "ingress/chat") is None
    finally:
        operator.end(signal.SIGKILL)
        print(operator.log.read_text())
        crds.kubectl("delete", "namespace", older.namespace, "--wait=false", check=False)
        older.kubectl("patch", *older.scope, "pod", pod, "--type=merge", "-p", release, check=False)
