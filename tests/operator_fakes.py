"""An API server made of a dictionary, and engines made of numbers, for whole runs of the operator."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, cast

from operator_builders import FakeClock
from tidemill_operator import names
from tidemill_operator.api import Api, Place
from tidemill_operator.cache import GATEWAYS, Cache
from tidemill_operator.claims import Claims
from tidemill_operator.cluster import Cluster
from tidemill_operator.engine_admin import EngineAdmin
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.errors import ApiError
from tidemill_operator.keys import Key
from tidemill_operator.observed import PodView
from tidemill_operator.pod_changes import PodChanger
from tidemill_operator.reconcile import Reconciler
from tidemill_operator.recorder import Recorder

Object = dict[str, Any]
KEY = Key("prod", "chat")


class Killed(BaseException):
    """The process ended here."""


class FakeEngines:
    """Engines by address: how many requests each has, and whether it drains."""

    def __init__(self) -> None:
        self.num_requests: dict[str, int] = {}
        self.draining: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.dead: set[str] = set()

    async def read(self, pods: Sequence[PodView], tokens: Sequence[str]) -> dict[str, EngineLoad | None]:
        assert tokens
        for pod in pods:
            if pod.is_draining:
                await self.drain(pod.ip, tokens)
        return {pod.uid: self._load(pod.ip) for pod in pods}

    async def drain(self, ip: str, tokens: Sequence[str]) -> bool:
        self.calls.append(("drain", ip))
        self.draining.add(ip)
        return ip not in self.dead

    async def take_back(self, ip: str, tokens: Sequence[str]) -> bool:
        self.calls.append(("take back", ip))
        self.draining.discard(ip)
        return ip not in self.dead

    def _load(self, ip: str) -> EngineLoad | None:
        if ip in self.dead:
            return None
        num = self.num_requests.get(ip, 0)
        return EngineLoad(in_flight_requests=num, in_flight_tokens=100 * num, is_refusing=ip in self.draining)


class FakeApi:
    """Objects by kind, namespace and name, with versions that grow only by a real change."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.events: list[Object] = []
        self.num_writes = 0
        self.dies_at: int | None = None
        self.refuses: set[str] = set()
        self.refusal = 403
        self.checked: list[Object] = []
        self.cache = Cache()
        self._ids = itertools.count(1)

    async def get_metadata(self, place: Place) -> Object | None:
        return await self.get(place)

    async def get(self, place: Place) -> Object | None:
        return copy.deepcopy(self.objects.get((place.kind, place.namespace, place.name)))

    async def apply(self, manifest: Object, *, is_dry_run: bool = False) -> Object:
        if is_dry_run:
            self.checked.append(manifest)
            if "Check" in self.refuses:
                raise ApiError(status=422, reason="Invalid", message="no such toleration", request="PATCH")
            return self.drops_volumes(manifest) if "Volumes" in self.refuses else manifest
        self._write(manifest["kind"])
        metadata = manifest["metadata"]
        seen = metadata.get("resourceVersion")
        before = self.objects.get((manifest["kind"], metadata["namespace"], metadata["name"]))
        if seen is not None and (before is None or before["metadata"]["resourceVersion"] != seen):
            raise ApiError(status=409, reason="Conflict", message="has changed", request="PATCH")
        return self.store({**(before or {}), **manifest})

    async def merge(self, place: Place, patch: Object) -> Object:
        self._write(place.kind)
        before = self.objects.get((place.kind, place.namespace, place.name))
        if before is None:
            raise ApiError(status=404, reason="NotFound", message="gone", request="PATCH")
        if before["metadata"]["uid"] != patch["metadata"]["uid"]:
            raise ApiError(status=409, reason="Conflict", message="another UID", request="PATCH")
        metadata = {**before["metadata"]}
        for field in ("labels", "annotations"):
            merged = {**metadata.get(field, {}), **patch["metadata"].get(field, {})}
            metadata[field] = {key: value for key, value in merged.items() if value is not None}
        return self.store({**before, "metadata": metadata})

    @staticmethod
    def drops_volumes(manifest: Object) -> Object:
        """Answer as a server does that knows no image volumes: without them, and without a word."""
        answer = copy.deepcopy(manifest)
        pod = answer["spec"]["template"]["spec"]
        pod["volumes"] = [volume for volume in pod["volumes"] if "image" not in volume]
        return answer

    async def apply_status(self, manifest: Object) -> Object:
        self._write("Status")
        stored = self.objects[(names.KIND, *KEY)]
        return self.store({**stored, "status": manifest["status"]})

    async def create(self, manifest: Object, *, kind: str) -> Object:
        if kind == "Event":
            self.events.append(manifest)
            return manifest
        self._write(kind)
        return self.store({**manifest, "kind": kind})

    async def delete(self, place: Place, preconditions: dict[str, str]) -> None:
        self._write(place.kind)
        key = (place.kind, place.namespace, place.name)
        assert self.objects[key]["metadata"]["uid"] == preconditions["uid"]
        self.remove(key)

    def remove(self, key: tuple[str, str, str]) -> None:
        """Take an object away as a person or the garbage collector would; the watch shows it."""
        gone = self.objects.pop(key)
        gone["metadata"]["resourceVersion"] = str(next(self._ids) + 1000)
        self.cache.drop(key[0], gone)

    def store(self, manifest: Object) -> Object:
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata["namespace"], metadata["name"])
        before = self.objects.get(key)
        fixed = {
            "uid": before["metadata"]["uid"] if before else metadata.get("uid", f"uid-{next(self._ids)}")
        }
        stored = {**copy.deepcopy(manifest), "metadata": {**copy.deepcopy(metadata), **fixed}}
        version = before["metadata"]["resourceVersion"] if before else "0"
        stored["metadata"]["resourceVersion"] = version
        if stored != before:
            stored["metadata"]["resourceVersion"] = str(next(self._ids) + 1000)
        self.objects[key] = stored
        labels = metadata.get("labels") or {}
        if names.LABEL_SERVICE in labels and stored["kind"] != "Secret":
            self.cache.put(stored["kind"], stored["kind"], stored)
        elif labels.get(names.LABEL_APP_COMPONENT) == names.COMPONENT_GATEWAY:
            self.cache.put(GATEWAYS, stored["kind"], stored)
        return copy.deepcopy(stored)

    def contents(self) -> Object:
        """Give everything but the identities that differ from one history to the next."""
        everything = copy.deepcopy(self.objects)
        for obj in everything.values():
            for field in ("uid", "resourceVersion"):
                obj["metadata"].pop(field)
            obj.pop("data", None) if obj["kind"] == "Secret" else None
        return {"/".join(key): obj for key, obj in everything.items()}

    def _write(self, kind: str) -> None:
        self.num_writes += 1
        if self.num_writes == self.dies_at:
            raise Killed
        if kind in self.refuses:
            status = self.refusal
            raise ApiError(status=status, reason="Test", message="exceeded quota", request=f"PATCH {kind}")


def make_reconciler(api: FakeApi, engines: FakeEngines | None = None) -> Reconciler:
    clock, real = FakeClock(), cast("Api", api)
    cluster = Cluster(real, api.cache)
    return Reconciler(
        cluster=cluster,
        recorder=Recorder(real, "test", clock.monotonic),
        claims=Claims(),
        engine_image="engine:test",
        now=clock.now,
        pods=PodChanger(cluster, cast("EngineAdmin", engines or FakeEngines())),
    )


class Controllers:
    """What the Deployment and ReplicaSet controllers and the kubelet do, on a FakeApi; gone pods by name."""

    def __init__(self, api: FakeApi, engines: FakeEngines) -> None:
        self._api = api
        self._engines = engines
        self._numbers = itertools.count(1)
        self.gone: list[str] = []
        self.max_placed = 1000
        self.slow_revisions: set[str] = set()
        """Those whose engines are still loading."""

    def act(self) -> None:
        """Create and delete pods as the Deployments ask, and let the kubelet start and probe them."""
        for deployment in self._of("Deployment"):
            replica_set = self._replica_set(deployment)
            pods = self._pods_of(replica_set)
            count = deployment["spec"]["replicas"]
            for pod in sorted(pods, key=_deletion_rank)[: max(0, len(pods) - count)]:
                self.end(pod["metadata"]["name"])
            for _ in range(count - len(pods)):
                self._make_pod(deployment, replica_set)
        for pod in self._of("Pod"):
            if pod["metadata"]["namespace"] == KEY.namespace:
                self._probe(pod)

    def pods(self) -> dict[str, Object]:
        """Give the pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self._of("Pod")}

    def counts(self) -> dict[str, int]:
        """Give the Deployments' counts by revision."""
        return {
            deployment["metadata"]["labels"][names.LABEL_REVISION]: deployment["spec"]["replicas"]
            for deployment in self._of("Deployment")
        }

    def end(self, name: str) -> None:
        """Let a pod go, by whomever."""
        self.gone.append(name)
        self._api.remove(("Pod", KEY.namespace, name))

    def _of(self, kind: str) -> list[Object]:
        return [obj for (its_kind, _, _), obj in sorted(self._api.objects.items()) if its_kind == kind]

    def _pods_of(self, replica_set: Object) -> list[Object]:
        uid = replica_set["metadata"]["uid"]
        return [pod for pod in self._of("Pod") if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _replica_set(self, deployment: Object) -> Object:
        owner = [{"uid": deployment["metadata"]["uid"], "controller": True}]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        metadata = {**KEY._asdict(), "name": deployment["metadata"]["name"], "labels": labels}
        return self._api.store({"kind": "ReplicaSet", "metadata": {**metadata, "ownerReferences": owner}})

    def _make_pod(self, deployment: Object, replica_set: Object) -> None:
        number = next(self._numbers)
        template = deployment["spec"]["template"]
        metadata = {
            "namespace": KEY.namespace,
            "name": f"pod-{number}",
            "labels": dict(template["metadata"]["labels"]),
            "ownerReferences": [{"uid": replica_set["metadata"]["uid"], "controller": True}],
        }
        self._api.store({"kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})

    def _num_placed(self) -> int:
        return sum("nodeName" in pod["spec"] for pod in self._of("Pod"))

    def _probe(self, pod: Object) -> None:
        """Schedule, start and probe one pod."""
        name = pod["metadata"]["name"]
        ip = f"ip-of-{name}"
        is_scheduled = bool(pod["spec"].get("nodeName"))
        if not is_scheduled and self._num_placed() >= self.max_placed:
            message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            self._api.store({**pod, "status": {"phase": "Pending", "conditions": [said]}})
            return
        is_loading = pod["metadata"]["labels"].get(names.LABEL_REVISION) in self.slow_revisions
        is_ready = not is_loading and ip not in self._engines.draining
        ready = {"type": "Ready", "status": "True" if is_ready else "False"}
        status = {"phase": "Running", "podIP": ip, "conditions": [ready]}
        self._api.store({**pod, "spec": {"nodeName": "n1"}, "status": status})


def _deletion_rank(pod: Object) -> tuple[bool, bool, bool, int, str]:
    """Order pods as the ReplicaSet controller deletes them."""
    conditions = pod["status"].get("conditions", [])
    is_ready = any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
    annotations = pod["metadata"].get("annotations", {})
    cost = int(annotations.get(names.ANNOTATION_DELETION_COST, "0"))
    return (
        bool(pod["spec"].get("nodeName")),
        pod["status"]["phase"] != "Pending",
        is_ready,
        cost,
        pod["metadata"]["name"],
    )
