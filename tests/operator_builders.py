"""Builders with defaults for tests of the operator."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemill_operator import manifests, names
from tidemill_operator.desired import desired_replicas
from tidemill_operator.observed import ChildView, DeploymentView, GatewayView, Observed, PodView, Termination
from tidemill_operator.spec import parse

NOW = "2026-11-29T12:00:00Z"
IMAGE = "tidemill-engine:test"
UID = "uid-chat"


def make_service(
    spec: dict[str, Any] | None = None, *, name: str = "chat", **metadata: Any
) -> dict[str, Any]:
    """Build an InferenceService as the API returns it; what is given replaces or adds to spec."""
    base: dict[str, Any] = {"model": {"uri": "sim://demo"}, "replicas": 2}
    merged = {key: value for key, value in {**base, **(spec or {})}.items() if value is not None}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"namespace": "prod", "name": name, "uid": UID, "generation": 3, **metadata},
        "spec": merged,
    }


def make_context(spec: dict[str, Any] | None = None) -> manifests.Context:
    """Build what manifests are made from."""
    service = make_service(spec)
    parsed = parse(service)
    return manifests.Context(
        namespace="prod",
        name="chat",
        uid=UID,
        spec=parsed,
        engine_image=IMAGE,
        desired_replicas=desired_replicas(parsed, {}, make_observed(), None),
    )


def pod_spec(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """Build the pod of an engine."""
    built: dict[str, Any] = manifests.build_pod_template(make_context(spec))["spec"]
    return built


def engine_container(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """Build the only container of an engine's pod."""
    (container,) = pod_spec(spec)["containers"]
    built: dict[str, Any] = container
    return built


def make_pod(revision: str, number: int = 0, **changes: Any) -> PodView:
    """Build a pod that runs and is not ready yet."""
    values = {
        "name": f"chat-{revision}-{number}",
        "uid": f"uid-{revision}-{number}",
        "ip": f"10.0.{number}.{sum(revision.encode()) % 250}",
        "revision": revision,
        "is_running": True,
        **changes,
    }
    return PodView(**values)


def ready_pods(revision: str, count: int) -> tuple[PodView, ...]:
    """Build pods that are ready."""
    return tuple(make_pod(revision, number, is_ready=True) for number in range(count))


def make_termination(**changes: Any) -> Termination:
    """Build the end of an engine that crashed after ten seconds."""
    values: dict[str, Any] = {
        "reason": "Error",
        "message": "",
        "exit_code": 1,
        "started_at": "2026-11-29T11:00:00Z",
        "finished_at": "2026-11-29T11:00:10Z",
        **changes,
    }
    return Termination(**values)


def make_deployment(revision: str, replicas: int, **changes: Any) -> DeploymentView:
    """Build a Deployment as the operator left it."""
    values: dict[str, Any] = {
        "name": names.deployment_name("chat", revision),
        "revision": revision,
        "uid": f"uid-{revision}",
        "created_at": NOW,
        "replicas": replicas,
        "written_replicas": replicas,
        "existing_replicas": replicas,
        **changes,
    }
    return DeploymentView(**values)


def owned_child(kind: str, name: str) -> ChildView:
    """Build a child that belongs to the service."""
    return ChildView(kind=kind, name=name, uid=f"uid-{kind}-{name}", is_owned=True)


def make_observed(**changes: Any) -> Observed:
    """Build a world in which one gateway is ready and nothing else exists."""
    values: dict[str, Any] = {
        "gateways": (GatewayView(name="gateway-0", ip="10.0.0.9", node="n1"),),
        **changes,
    }
    return Observed(**values)


class FakeClock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 11, 29, 12, tzinfo=UTC) + timedelta(seconds=self.seconds - 1000)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.seconds + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move on, waking each sleeper at its own time."""
        end = self.seconds + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self.seconds = max(self.seconds, due)
            woken.set_result(None)
            await settle()
        self.seconds = end
        await settle()


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)
