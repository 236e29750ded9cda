"""A service with its operator, autoscaler and cluster in one process, and a clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from operator_builders import FakeClock, make_service, settle
from operator_fakes import KEY, Controllers, FakeApi, FakeEngines, Object, make_reconciler
from scaling_builders import make_demand, make_figures
from tidemill_operator import names
from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.fleet.autoscaler import Autoscaler
from tidemill_operator.fleet.scraper import EngineAnswer, EngineTarget, GatewayAnswer, GatewayTarget, Scraper
from tidemill_operator.reconcile import Reconciler

AUTO: dict[str, Any] = {
    "replicas": None,
    "scaling": {
        "minReplicas": 1,
        "maxReplicas": 8,
        "targets": {"queueLengthPerReplica": 2},
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
    },
}
SERVICE = (names.KIND, *KEY)


@dataclass(kw_only=True)
class FakeFleet:
    """Engines and gateways that say what a test wants; None: silence."""

    clock: FakeClock
    waiting: dict[str, int] = field(default_factory=dict)
    usual_waiting: int | None = 0
    held: int | None = 0
    asked: set[str] = field(default_factory=set)
    num_requests: float = 0.0

    async def engine(self, target: EngineTarget) -> EngineAnswer:
        self.asked.add(target.name)
        waiting = self.waiting.get(target.name, self.usual_waiting)
        if waiting is None:
            return EngineAnswer(missing_reason="no answer in 2 s")
        now = self.clock.now().timestamp()
        running = 4 if waiting else 0
        figures = make_figures(
            sampled_at=now,
            num_waiting=waiting,
            num_running=running,
            held_blocks=20.0 * running,
            max_num_seqs=4,
        )
        return EngineAnswer(figures=figures)

    async def gateway(self, target: GatewayTarget) -> GatewayAnswer:
        if self.held is None:
            return GatewayAnswer(missing_reason="no answer in 2 s")
        now = self.clock.now().timestamp()
        demand = make_demand(sampled_at=now, held_requests=self.held, requests_total=self.num_requests)
        return GatewayAnswer(started=1.0, services={str(KEY): demand})

    async def close(self) -> None:
        pass


@dataclass(kw_only=True)
class Stage:
    """One service, one operator, a cluster made of dictionaries, and a clock that a test moves."""

    clock: FakeClock
    api: FakeApi
    fleet: FakeFleet
    controllers: Controllers
    counts: list[int] = field(default_factory=list)
    autoscaler: Autoscaler = field(init=False)
    reconciler: Reconciler = field(init=False)
    is_asked: bool = field(init=False, default=False)

    def start_operator(self) -> None:
        """Begin a new operator process, which knows only what the cluster knows."""
        self.autoscaler = Autoscaler(
            scraper=cast("Scraper", self.fleet),
            decide=desired_replicas,
            ask_reconcile=lambda _: setattr(self, "is_asked", True),
            clock=self.clock,
        )
        base = make_reconciler(self.api, FakeEngines())
        self.reconciler = replace(base, scaling=self.autoscaler, now=self.clock.now)

    async def reconcile(self) -> None:
        """Run until nothing asks for another run, the other controllers in between."""
        for _ in range(20):
            self.is_asked = False
            before = self.api.contents()
            await self.reconciler.run(KEY)
            self.controllers.act()
            self.counts.append(self.replicas)
            await settle()
            if not self.is_asked and self.api.contents() == before:
                return
        raise AssertionError("the runs never come to rest")

    async def pass_time(self, seconds: float) -> None:
        """Let the time pass in steps of the autoscaler's interval."""
        for _ in range(round(seconds / 5)):
            await self.clock.advance(5)
            await self.reconcile()

    @property
    def service(self) -> Object:
        return self.api.objects[SERVICE]

    @property
    def status(self) -> Object:
        return dict(self.service.get("status") or {})

    @property
    def replicas(self) -> int:
        return sum(self.controllers.counts().values())

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def told(self) -> set[str]:
        return {event["reason"] for event in self.api.events}

    def change_spec(self, **changes: Any) -> None:
        """Write a new spec, as a person does."""
        metadata = {**self.service["metadata"], "generation": self.service["metadata"]["generation"] + 1}
        spec = {**self.service["spec"], **changes}
        self.api.store({**self.service, "metadata": metadata, "spec": spec})


def make_stage(spec: dict[str, Any]) -> Stage:
    """Build a service, one gateway and an operator that has just begun; its autoscaler is to be closed."""
    clock, api = FakeClock(), FakeApi()
    api.store(make_service(spec))
    gateway: Object = {"name": "gateway-0", "namespace": "tidemill-system", "labels": {}}
    gateway["ownerReferences"] = [{"uid": "uid-of-the-gateways", "controller": True}]
    gateway["labels"] = {names.LABEL_APP_NAME: names.APP, names.LABEL_APP_COMPONENT: names.COMPONENT_GATEWAY}
    ready = {"podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
    api.store({"kind": "Pod", "metadata": gateway, "spec": {"nodeName": "n"}, "status": ready})
    staged = Stage(
        clock=clock, api=api, fleet=FakeFleet(clock=clock), controllers=Controllers(api, FakeEngines())
    )
    staged.start_operator()
    return staged
