"""One namespace of a real API server without a node, as tests of the operator's process see and change it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.kubectl import PATIENCE_SECONDS, wait_until

from operator_process import Operator, restricted_pod
from tidemill_operator import names

if TYPE_CHECKING:
    from harness.session import TestCluster

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

    def replace_routing(self, routing: Object) -> None:
        """Write another spec.routing in place of the one that is there."""
        patch = json.dumps([{"op": "add", "path": "/spec/routing", "value": routing}])
        self.kubectl("patch", *self.scope, "infsvc/chat", "--type=json", "-p", patch)

    def wait_for(
        self, kind: str, status: str, reason: str, *, timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        def is_so() -> bool:
            return self.condition(kind) == (status, reason)

        try:
            wait_until(f"{kind}={status} {reason}", is_so, timeout_seconds=timeout_seconds)
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

        wait_until(f"{count} pods of {revision}", lambda: len(listed()) == count)
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
        return str(wait_until("a revision", self._update_revision))

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


def wait_for_runs(operator: Operator) -> None:
    """Wait until the operator has looked at its service at least once."""
    name = 'tidemill_operator_reconciles_total{result="done"}'
    wait_until("a run", lambda: operator.metric(name))
