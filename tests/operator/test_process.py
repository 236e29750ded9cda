"""The operator as a process on a real API server with controllers and no node: tests play the kubelet.

It runs under the chart's ServiceAccount, with the rights that the chart gives in one namespace and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from harness.kubectl import wait_until

from chart_release import ROOT, make_namespace
from operator_process import Account, Operator, restricted_pod
from tidemill_operator import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
Object = dict[str, Any]
CHILDREN = (
    "deployments,replicasets,pods,services,secrets,controllerrevisions,endpointslices,ingresses,"
    "poddisruptionbudgets"
)
SAID = json.dumps({"reason": "ModelLoadFailed", "message": "no such model"})


class World:
    """One namespace with its services, and what the kubelet would do there."""

    def __init__(self, cluster: TestCluster, namespace: str) -> None:
        self.kubectl = cluster.kubectl
        self.namespace = namespace
        self.scope = ("-n", namespace)

    def apply(
        self, spec: Object | None = None, name: str = "chat", labels: dict[str, str] | None = None
    ) -> None:
        base: Object = {"model": {"uri": "sim://demo"}, "replicas": 2}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels or {}}
        service = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata}
        self.kubectl.apply({**service, "spec": {**base, **(spec or {})}})

    def service(self, name: str = "chat") -> Object:
        return self.kubectl.get(*self.scope, f"infsvc/{name}")

    def condition(self, kind: str) -> tuple[str, str]:
        conditions = self.service().get("status", {}).get("conditions", [])
        return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), ("", ""))

    def wait_for(self, kind: str, status: str, reason: str) -> None:
        def is_so() -> bool:
            return self.condition(kind) == (status, reason)

        try:
            wait_until(f"{kind}={status} {reason}", is_so, timeout_seconds=30)
        except Exception as error:
            raise AssertionError(f"{error}: {json.dumps(self.service().get('status'), indent=1)}") from error

    def children(self) -> list[Object]:
        return self.kubectl.items(CHILDREN, *self.scope, "-l", f"{names.LABEL_SERVICE}=chat")

    def deployments(self) -> dict[str, int]:
        found = self.kubectl.items("deployments", *self.scope)
        return {d["metadata"]["labels"][names.LABEL_REVISION]: d["spec"]["replicas"] for d in found}

    def pods(self, revision: str, count: int) -> list[str]:
        """Wait for so many pods of a revision and give their names."""

        selector = f"{names.LABEL_REVISION}={revision}"

        def listed() -> list[str]:
            return [p["metadata"]["name"] for p in self.kubectl.items("pods", *self.scope, "-l", selector)]

        wait_until(f"{count} pods of {revision}", lambda: len(listed()) == count, timeout_seconds=30)
        return listed()

    def patch_pod(self, pod: str, status: Object) -> None:
        patch = json.dumps({"status": status})
        self.kubectl("patch", *self.scope, "pod", pod, "--subresource=status", "--type=merge", "-p", patch)

    def make_ready(self, pods: list[str]) -> None:
        conditions = [{"type": "Ready", "status": "True"}]
        for pod in pods:
            self.patch_pod(pod, {"phase": "Running", "conditions": conditions})

    def make_fail(self, pod: str) -> None:
        """Let a pod's engine have ended with its own words, some times already."""
        ended = {
            "exitCode": 3,
            "reason": "Error",
            "message": SAID,
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:09Z",
        }
        container = {
            "name": "engine",
            "image": "localhost/engine:test",
            "imageID": "",
            "ready": False,
            "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
            "lastState": {"terminated": ended},
        }
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
        self.patch_pod(pod, {"phase": "Running", "conditions": conditions, "containerStatuses": [container]})

    def make_gateway(self) -> None:
        labels = {names.LABEL_APP_NAME: names.APP, names.LABEL_APP_COMPONENT: names.COMPONENT_GATEWAY}
        self.make_pod("gateway", labels)
        self.patch_pod(
            "gateway",
            {
                "podIP": "10.1.1.1",
                "podIPs": [{"ip": "10.1.1.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        )

    def make_pod(self, name: str, labels: dict[str, str]) -> None:
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
                "spec": restricted_pod("localhost/none:test"),
            }
        )

    def revision(self) -> str:
        return str(wait_until("a revision", self._update_revision, timeout_seconds=30))

    def _update_revision(self) -> str | None:
        update: str | None = self.service().get("status", {}).get("revision", {}).get("update")
        return update

    def written(self) -> dict[str, list[Object]]:
        """Give which fields the operator has written of each object, and when; controllers write others."""
        shown = ("--show-managed-fields", *self.scope)
        objects = self.kubectl.items(CHILDREN, *shown, "-l", f"{names.LABEL_SERVICE}=chat")
        objects += self.kubectl.items("infsvc", *shown)
        return {f"{obj['kind']}/{obj['metadata']['name']}": _operators_entries(obj) for obj in objects}

    def events(self) -> list[Object]:
        return self.kubectl.items("events", *self.scope, "--field-selector", "involvedObject.name=chat")


def _operators_entries(obj: Object) -> list[Object]:
    """Give what the API server has noted of the operator's writes to an object."""
    return [e for e in obj["metadata"]["managedFields"] if e["manager"] == names.FIELD_MANAGER]


@pytest.fixture
def world(crds: TestCluster, namespace: str) -> World:
    return World(crds, namespace)


@pytest.fixture
def start(crds: TestCluster, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    kubeconfig = Account(crds, namespace).write_kubeconfig(tmp_path)
    started: list[Operator] = []

    def launch(image: str = "localhost/engine:test") -> Operator:
        log = tmp_path / f"operator-{len(started)}.log"
        started.append(Operator(kubeconfig, namespace, log, image=image))
        return started[-1]

    yield launch
    for operator in started:
        with contextlib.suppress(ProcessLookupError):
            operator.process.kill()
        operator.process.wait()
        print(operator.log.read_text())
        # The words for a right that is lacking; a quota refuses in others.
        assert not re.search(r"cannot \w+ resource", operator.log.read_text())


def wait_for_runs(operator: Operator) -> None:
    """Wait until the operator has looked at its service at least once."""
    name = 'tidemill_operator_reconciles_total{result="done"}'
    wait_until("a run", lambda: operator.metric(name), timeout_seconds=40)


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
    world.kubectl("wait", *world.scope, "infsvc/chat", "--for=condition=Ready", "--timeout=30s")
    world.wait_for("Progressing", "False", "Settled")
    endpoints = world.kubectl.get(*world.scope, "endpointslice", "chat-gateway")["endpoints"]
    assert [endpoint["addresses"] for endpoint in endpoints] == [["10.1.1.1"]]
    assert world.service()["status"]["readyReplicas"] == 2


def test_a_restarted_operator_finds_nothing_to_write(world: World, start: Callable[[], Operator]) -> None:
    world.apply({"routing": {"ingress": {"host": "chat.example.com"}}})
    world.make_gateway()
    first = start()
    world.make_ready(world.pods(world.revision(), 2))
    world.wait_for("Ready", "True", "ReplicasReady")
    world.wait_for("Progressing", "False", "Settled")
    assert first.end(signal.SIGTERM) == 0
    before = world.written()
    assert {key.partition("/")[0] for key, entries in before.items() if entries} >= {
        "Deployment", "Service", "Secret", "PodDisruptionBudget", "Ingress", names.KIND,
    }  # fmt: skip
    second = start()
    wait_for_runs(second)
    assert world.written() == before
    assert second.metric("tidemill_operator_status_writes_total") == 0


def test_an_upgraded_operator_restarts_nothing_until_it_is_asked_to(
    world: World, start: Callable[..., Operator]
) -> None:
    world.apply()
    world.make_gateway()
    first = start()
    old = world.revision()
    pods = world.pods(old, 2)
    world.make_ready(pods)
    world.wait_for("Progressing", "False", "Settled")
    assert world.condition("NewerTemplateAvailable") == ("", "")
    first.end(signal.SIGTERM)
    start("localhost/engine:newer")
    world.wait_for("NewerTemplateAvailable", "True", "OperatorChanged")
    assert world.deployments() == {old: 2}
    assert sorted(world.pods(old, 2)) == sorted(pods)
    world.kubectl("annotate", *world.scope, "infsvc/chat", f"{names.ANNOTATION_RESTARTED_AT}=now")
    wait_until("a new revision", lambda: world.revision() != old, timeout_seconds=30)
    (pod,) = world.pods(world.revision(), 1)
    containers = world.kubectl.get(*world.scope, "pod", pod)["spec"]["containers"]
    assert [container["image"] for container in containers] == ["localhost/engine:newer"]


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
    (pod,) = world.pods(world.revision(), 1)
    spec = world.kubectl.get(*world.scope, f"pod/{pod}")["spec"]
    image = {"reference": "registry.example.com/org/model:v1", "pullPolicy": "IfNotPresent"}
    assert {"name": "models", "image": image} in spec["volumes"]


def test_a_template_that_no_api_server_takes_is_told_and_leaves_the_former_revision(
    world: World, start: Callable[[], Operator]
) -> None:
    world.apply()
    start()
    before = world.revision()
    world.apply(
        {"template": {"spec": {"containers": [{"name": "engine", "livenessProbe": {"periodSeconds": -1}}]}}}
    )
    world.wait_for("Ready", "False", "InvalidTemplate")
    assert set(world.deployments()) == {before}
    world.apply({"template": {"spec": {"priorityClassName": "system-cluster-critical"}}})
    wait_until("the next revision", lambda: set(world.deployments()) - {before}, timeout_seconds=60)


def test_a_new_revision_replaces_the_old_one_as_it_becomes_ready(
    world: World, start: Callable[[], Operator]
) -> None:
    world.apply()
    world.make_gateway()
    start()
    old = world.revision()
    world.make_ready(world.pods(old, 2))
    world.wait_for("Progressing", "False", "Settled")
    world.apply({"engine": {"dtype": "float32"}})
    wait_until("a new revision", lambda: world.revision() != old, timeout_seconds=30)
    new = world.revision()
    first = world.pods(new, 1)
    assert world.deployments() == {old: 2, new: 1}
    assert world.condition("Ready") == ("True", "ReplicasReady")
    world.make_ready(first)
    world.make_ready(world.pods(new, 2))
    world.wait_for("Progressing", "False", "Settled")
    wait_until("the old revision to go", lambda: world.deployments() == {new: 2}, timeout_seconds=30)
    revisions = {c["metadata"]["name"] for c in world.children() if c["kind"] == "ControllerRevision"}
    assert revisions == {f"chat-{new}", f"chat-{old}"}
    world.apply({"engine": {"dtype": "float32"}, "rollout": {"toRevision": old}})
    world.pods(old, 1)
    assert world.revision() == old


def test_a_canary_that_fails_is_stopped_while_the_current_revision_serves_on(
    world: World, start: Callable[[], Operator]
) -> None:
    world.apply()
    world.make_gateway()
    start()
    old = world.revision()
    world.make_ready(world.pods(old, 2))
    world.wait_for("Progressing", "False", "Settled")
    world.apply({"engine": {"dtype": "float32"}, "rollout": {"canary": {"trafficPercent": 10}}})
    world.wait_for("Progressing", "True", "CanaryRunning")
    new = world.revision()
    (pod,) = world.pods(new, 1)
    assert world.deployments() == {old: 2, new: 1}
    world.make_fail(pod)
    world.wait_for("Progressing", "False", "CanaryFailed")
    wait_until("the canary to go", lambda: world.deployments() == {old: 2, new: 0}, timeout_seconds=30)
    assert world.service()["status"]["revision"] == {"current": old, "update": new, "failed": new}
    assert world.condition("Ready") == ("True", "ReplicasReady")
    assert any(event["reason"] == "CanaryFailed" for event in world.events())


def test_a_deployment_scaled_by_hand_is_put_back(world: World, start: Callable[[], Operator]) -> None:
    world.apply()
    start()
    revision = world.revision()
    world.pods(revision, 2)
    world.kubectl("scale", *world.scope, f"deployment/chat-{revision}", "--replicas=5")
    wait_until(
        "an event that says so",
        lambda: any(e["reason"] == "ReplicasPutBack" for e in world.events()),
        timeout_seconds=30,
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
        timeout_seconds=30,
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
        timeout_seconds=15,
    )
    assert made["data"]["token"] != before


def test_deletion_leaves_nothing(world: World, start: Callable[[], Operator]) -> None:
    world.apply({"routing": {"ingress": {"host": "chat.example.com"}}})
    start()
    world.pods(world.revision(), 2)
    world.kubectl("delete", *world.scope, "infsvc/chat", "--timeout=60s")
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


def test_an_operator_killed_in_mid_reconcile_is_finished_by_the_next(
    world: World, start: Callable[[], Operator]
) -> None:
    # No Service may be made here: a run gets as far as the Deployment and no further.
    quota = {"metadata": {"name": "q", "namespace": world.namespace}, "spec": {"hard": {"services": "0"}}}
    world.kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    world.apply({"routing": {"ingress": {"host": "chat.example.com"}}})
    first = start()
    world.wait_for("Ready", "False", "WriteRefused")
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    assert "Service" not in {child["kind"] for child in world.children()}
    world.kubectl("delete", *world.scope, "resourcequota", "q")
    start()
    # The dead one's lease has to run out first: 15 s.
    world.wait_for("Ready", "False", "ReplicasStarting")
    assert {"Service", "PodDisruptionBudget", "Ingress"} <= {child["kind"] for child in world.children()}


def test_of_two_operators_one_acts_and_the_other_takes_over(
    world: World, start: Callable[[], Operator]
) -> None:
    first = start()
    wait_until("a leader", lambda: first.metric("tidemill_operator_is_leader"), timeout_seconds=40)
    second = start()
    wait_until("the standby to be ready", lambda: second.get("/health/ready"), timeout_seconds=40)
    world.apply()
    wait_for_runs(first)
    assert second.metric("tidemill_operator_is_leader") == 0
    assert second.metric("tidemill_operator_queue_keys") == 0
    assert first.end(signal.SIGTERM) == 0
    wait_until("a successor", lambda: second.metric("tidemill_operator_is_leader"), timeout_seconds=40)
    world.kubectl("scale", *world.scope, "infsvc/chat", "--replicas=3")
    world.pods(world.revision(), 3)


def test_an_operator_whose_lease_is_taken_ends_at_once(world: World, start: Callable[[], Operator]) -> None:
    operator = start()
    wait_until("a leader", lambda: operator.metric("tidemill_operator_is_leader"), timeout_seconds=40)
    patch = json.dumps({"spec": {"holderIdentity": "someone-else"}})
    world.kubectl("patch", *world.scope, "lease", "tidemill-operator", "--type=merge", "-p", patch)
    assert operator.process.wait(timeout=30) == 3
    assert "leadership is lost" in operator.log.read_text()


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


def test_an_operator_that_starts_before_the_definition_waits_for_it(
    crds: TestCluster, world: World, start: Callable[[], Operator]
) -> None:
    crds.kubectl("delete", f"crd/{names.CRD_NAME}")
    operator = start()
    try:
        wait_until("the wait", lambda: "does not know" in operator.log.read_text(), timeout_seconds=30)
    finally:
        crds.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
        crds.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", ROOT / "crds")
    world.apply()
    world.wait_for("Ready", "False", "ReplicasStarting")


def test_an_operator_without_an_api_server_ends_with_a_message(tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "missing")}
    command = [sys.executable, "-m", "tidemill_operator", "run", "--engine-image", "x"]
    ended = subprocess.run(
        [*command, "--operator-namespace", "n", "--http-port", "0"],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "tidemill-operator: " in ended.stderr
    assert "Traceback" not in ended.stderr
