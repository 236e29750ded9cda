"""The operator killed at any write, and an API server that refuses, drops, delays and forgets.

A real API server with controllers and no node; a proxy in front of it does the harm, a thread plays the
kubelet. Kills happen at the n-th write, before it reaches the API server or after, so that every place in a
run is hit and no clock decides. How long a dead leader's Lease counts is tested elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from harness.kubectl import PATIENCE_SECONDS, wait_until

from api_proxy import Faults
from operator_process import EAGER, Account, Admin, Kubelet, Operator, restricted_pod
from soak import note
from tidemill_operator import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.session import TestCluster

    from api_proxy import ApiProxy

pytestmark = pytest.mark.cluster
Object = dict[str, Any]
NUM_KILLS = int(os.environ.get("TIDEMILL_TEST_KILLS", "20"))
SEED = int(os.environ.get("TIDEMILL_TEST_SEED", "5"))
KINDS = (
    "apis/apps/v1:deployments", "apis/apps/v1:replicasets", "apis/apps/v1:controllerrevisions", "api/v1:pods",
    "api/v1:services", "api/v1:secrets", "apis/networking.k8s.io/v1:ingresses",
    "apis/networking.k8s.io/v1:networkpolicies", "apis/policy/v1:poddisruptionbudgets",
    "apis/discovery.k8s.io/v1:endpointslices",
)  # fmt: skip


class World:
    """One namespace: services to write, what exists, and operators that take each other's place."""

    def __init__(self, cluster: TestCluster, namespace: str, folder: Path, seed: int) -> None:
        self.admin = Admin(cluster)
        self.namespace = namespace
        account = Account(cluster, namespace)
        self.proxy: ApiProxy = account.proxy(seed)
        self.proxy.start()
        self._kubeconfig = account.write_kubeconfig(folder, self.proxy.url)
        self._folder = folder
        self.operators: list[Operator] = []
        self.lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{names.DEFAULT_LEASE_NAME}"
        self.path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"

    def start(self) -> Operator:
        log = self._folder / f"operator-{len(self.operators)}.log"
        self.operators.append(Operator(self._kubeconfig, self.namespace, log, arguments=EAGER))
        return self.operators[-1]

    def close(self) -> None:
        for operator in self.operators:
            with contextlib.suppress(ProcessLookupError):
                operator.process.kill()
            operator.process.wait()
        self.proxy.stop()
        for operator in self.operators:
            text = operator.log.read_text()
            print(f"--- {operator.log.name}\n{text[-6000:]}")
            assert "Forbidden" not in text
            assert traced_errors(text) == []

    def write(self, name: str, **spec: Any) -> None:
        """Apply a service."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"model": {"uri": "sim://demo"}, "replicas": 2, **spec},
        }
        path = f"{self.path}/{name}?fieldManager=test&force=true"
        answer = self.admin("PATCH", path, body, "apply-patch+yaml")
        assert answer["kind"] == names.KIND, answer

    def delete(self, name: str) -> None:
        self.admin("DELETE", f"{self.path}/{name}")

    def services(self) -> dict[str, Object]:
        return {found["metadata"]["name"]: found for found in self.admin.items(self.path)}

    def objects(self) -> dict[str, Object]:
        """Give everything that the operator's services own, and their children's children."""
        found = {}
        for kind in KINDS:
            prefix, _, plural = kind.partition(":")
            path = f"/{prefix}/namespaces/{self.namespace}/{plural}"
            for obj in self.admin.items(f"{path}?labelSelector={names.LABEL_SERVICE}"):
                found[f"{plural}/{obj['metadata']['name']}"] = obj
        return found

    def make_gateway(self) -> None:
        labels = {names.LABEL_APP_NAME: names.APP, names.LABEL_APP_COMPONENT: names.COMPONENT_GATEWAY}
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        spec = restricted_pod("localhost/none:test")
        self.admin("POST", pods, {"metadata": {"name": "gateway", "labels": labels}, "spec": spec})
        ready = [{"type": "Ready", "status": "True"}]
        status = {"podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}], "conditions": ready}
        self.admin("PATCH", f"{pods}/gateway/status", {"status": status}, "merge-patch+json")

    def settled(self) -> bool:
        """Tell whether every service says of its newest generation that all is done."""
        return all(_is_settled(service) for service in self.services().values())

    def wait_settled(self, what: str, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        try:
            wait_until(what, self.settled, timeout_seconds=timeout_seconds)
        except Exception as error:
            told = {
                name: (service["metadata"]["generation"], service.get("status"))
                for name, service in self.services().items()
            }
            raise AssertionError(f"{error}: {json.dumps(told, indent=1)}") from error


def _is_settled(service: Object) -> bool:
    status = service.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    progressing = conditions.get("Progressing") or {}
    is_new = status.get("observedGeneration") == service["metadata"]["generation"]
    return is_new and progressing.get("reason") == "Settled" and "Reconciling" not in conditions


def shape_of(objects: dict[str, Object]) -> dict[str, Object]:
    """Reduce objects to what the operator decided, without what controllers made and named at random."""
    shape = {}
    for key, obj in objects.items():
        metadata = obj["metadata"]
        if key.startswith(("pods/", "replicasets/")) or metadata.get("generateName"):
            continue
        decided = {"labels": metadata.get("labels"), "annotations": metadata.get("annotations") or {}}
        decided["annotations"].pop("deployment.kubernetes.io/revision", None)
        spec = dict(obj.get("spec") or {})
        for given in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            spec.pop(given, None)
        shape[key] = {**decided, "spec": spec, "template": (obj.get("data") or {}).get("template")}
    return shape


def traced_errors(log: str) -> list[str]:
    """Give the operator's own messages with a stack trace: errors that it did not expect.

    Kopf gives up on an answer such as 410 with a trace of its own, and is begun anew.
    """
    lines = log.splitlines()
    return [
        line
        for line, following in pairwise(lines)
        if following.startswith("Traceback")
        and " tidemill_operator." in line
        and "the watch of the services failed; it begins anew" not in line
    ]


def orphans_of(services: dict[str, Object], objects: dict[str, Object]) -> list[str]:
    """Name what no living owner claims."""
    living = {obj["metadata"]["uid"] for obj in (*services.values(), *objects.values())}
    return [
        key
        for key, obj in objects.items()
        if not any(owner["uid"] in living for owner in obj["metadata"].get("ownerReferences") or ())
    ]


@pytest.fixture
def make_world(crds: TestCluster, namespace: str, tmp_path: Path) -> Iterator[Callable[[int], World]]:
    worlds: list[World] = []

    def make(seed: int) -> World:
        worlds.append(World(crds, namespace, tmp_path, seed))
        return worlds[-1]

    with Kubelet(crds, namespace):
        yield make
        for world in worlds:
            world.close()


# What is done to the services, over and over: create, roll, remove replicas, delete.
STEPS: tuple[Callable[[World], None], ...] = (
    lambda world: world.write("a", routing={"ingress": {"host": "a.example.com"}}),
    lambda world: world.write("b", replicas=3),
    lambda world: world.write("a", engine={"dtype": "float32"}),
    lambda world: world.write("b", replicas=1),
    lambda world: world.write("a", engine={"dtype": "bfloat16"}, replicas=1),
    lambda world: world.delete("b"),
)


@pytest.mark.timeout(300 + 20 * NUM_KILLS)
def test_an_operator_killed_at_any_write_is_finished_by_the_next(
    make_world: Callable[[int], World],
) -> None:
    world = make_world(SEED)
    chance = random.Random(SEED)
    world.make_gateway()
    leading = world.start()
    wait_until("a leader", lambda: leading.metric("tidemill_operator_is_leader"))
    standby = world.start()
    for number in range(NUM_KILLS):
        doomed = leading
        world.proxy.at_write(chance.randint(1, 12), doomed.process.kill, is_before=chance.random() < 0.5)
        STEPS[number % len(STEPS)](world)
        assert doomed.process.wait(timeout=120) == -signal.SIGKILL
        world.admin("DELETE", world.lease)
        leading, standby = standby, world.start()
    for step in STEPS[: len(STEPS) - 1]:
        step(world)
        world.wait_settled("the services after all kills")
    STEPS[-1](world)
    wait_until("the deleted service's children to go", lambda: not _of(world, "b"))
    assert orphans_of(world.services(), world.objects()) == []
    killed = shape_of(_of(world, "a"))
    world.delete("a")
    wait_until("an empty namespace", lambda: not world.objects())

    for step in (STEPS[0], STEPS[2], STEPS[4]):
        step(world)
        world.wait_settled("the undisturbed service")
    assert killed == shape_of(_of(world, "a"))
    note("SIGKILL of the operator", num_times=NUM_KILLS)


def _of(world: World, service: str) -> dict[str, Object]:
    found = world.objects().items()
    return {key: obj for key, obj in found if obj["metadata"]["labels"][names.LABEL_SERVICE] == service}


BAD_DAY = Faults(
    delayed=0.2,
    delay_seconds=0.1,
    refused=0.12,
    dropped=0.03,
    answer_lost=0.04,
    watch_expired=0.2,
    watch_cut_after=5,
    # Leadership has tests of its own; an operator that loses it ends, as it must.
    spared=("/leases",),
)
# A day is begun again until all of these have happened.
BAD_THINGS = {"refused 409", "refused 410", "refused 429", "refused 500", "dropped"}
# Two services, five changes, eight watches; the Lease apart; 250 on a day like this.
MAX_REQUESTS_PER_DAY = 600


@pytest.mark.timeout(900)
def test_converges_through_an_api_server_on_a_bad_day_with_a_bounded_number_of_requests(
    make_world: Callable[[int], World],
) -> None:
    world = make_world(7)
    world.make_gateway()
    operator = world.start()
    wait_until("a leader", lambda: operator.metric("tidemill_operator_is_leader"))
    world.proxy.misbehave(BAD_DAY)
    num_days = 0
    while num_days == 0 or not world.proxy.counts.keys() >= BAD_THINGS:
        num_days += 1
        for step in STEPS[:5]:
            step(world)
        # Bad luck of eight runs in a row makes a pause of a minute, and two minutes of pauses in all.
        world.wait_settled("the services on a bad day", timeout_seconds=300)
    assert operator.process.poll() is None, "the operator must live through it"
    world.proxy.misbehave(Faults())
    world.delete("b")
    wait_until("the deleted service's children to go", lambda: not _of(world, "b"))
    assert orphans_of(world.services(), world.objects()) == []
    harmed = {what: count for what, count in world.proxy.counts.items() if not what.isupper()}
    total = sum(count for what, count in world.proxy.counts.items() if what.isupper())
    print(f"{num_days} days, requests: {total}, of which the proxy harmed {harmed}")
    assert total < num_days * MAX_REQUESTS_PER_DAY
