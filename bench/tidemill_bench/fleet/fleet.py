"""A fleet over time: requests arrive, gateways route, an autoscaler is asked, pods come and go.

One virtual clock, no real time, chance only by name (`chance.py`): the same load, policy and settings give
the same figures to the last digit, and two policies meet the same start-up times and lost scrapes. Removal
is our operator's for every policy: not-ready pods first, then the one with the fewest requests, drained
before it goes; returning load takes draining pods back before new ones are made.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from tidemill_bench.fleet.chance import uniform
from tidemill_bench.fleet.pods import Pod, PodSet
from tidemill_bench.fleet.quick_replica import QuickEngine
from tidemill_bench.fleet.requests import FleetRequest
from tidemill_bench.fleet.scheduler_replica import SchedulerEngine
from tidemill_operator.autoscaling.model import FleetLoad, GatewayDemand, GatewayLoad

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_bench.fleet.loads import Load
    from tidemill_bench.fleet.replica import Engine
    from tidemill_bench.fleet.settings import FleetSettings

EngineKind = Literal["scheduler", "quick"]
_PUMP_SECONDS = 0.25
_STEP_ERROR = 0.05
"""How far the step times that a quick replica reports may be off; the real scheduler learns its own."""
_MAX_TAIL_SECONDS = 1800.0


class FleetPolicy(Protocol):
    """An autoscaler: asked at each scrape for the number of replicas; None changes nothing."""

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """What happened; figures leave the warm-up out. `targets` are (time, replicas) at each change."""

    requests: tuple[FleetRequest, ...]
    attainment: float
    gpu_hours: float
    targets: tuple[tuple[float, int], ...]
    largest_queue: int
    num_failed: int
    num_scale_events: int


@dataclass(kw_only=True)
class _Gateway:
    """What the gateways know, all of them together."""

    held: deque[FleetRequest] = field(default_factory=deque)
    num_requests: int = 0
    num_prompt_tokens: int = 0
    last_request: float | None = None


class Fleet:
    """One run: `Fleet(load, policy, settings).run()`."""

    def __init__(
        self,
        load: Load,
        policy: FleetPolicy,
        settings: FleetSettings,
        engine: EngineKind = "quick",
        on_load: Callable[[FleetLoad], None] | None = None,
    ) -> None:
        self._load, self._policy, self._settings, self._kind = load, policy, settings, engine
        self._on_load = on_load
        self._requests = load.requests()
        self._pods = PodSet()
        self._gateway = _Gateway()
        self._events: list[tuple[float, int, str, int]] = []
        self._num_events = 0
        self._now = 0.0
        self._num_pods = 0
        self._target = load.initial_replicas
        self._targets = [(0.0, self._target)]
        self._largest_queue = 0
        self._is_pumping = False

    def run(self) -> FleetRun:
        """Run the load and let what was accepted finish."""
        for _ in range(self._target):
            self._make_pod(startup_seconds=0.0)
        self._later(self._settings.scrape_interval_seconds, "scrape")
        for when in self._load.crashes_seconds:
            self._later(when, "crash")
        arrivals = deque(self._requests)
        end = self._load.duration_seconds
        while arrivals or self._now < end or (self._has_work() and self._now < end + _MAX_TAIL_SECONDS):
            next_event = self._events[0][0]
            if arrivals and arrivals[0].arrival <= next_event:
                request = arrivals.popleft()
                self._go_to(request.arrival)
                self._arrive(request)
            else:
                when, _, kind, argument = heapq.heappop(self._events)
                self._go_to(when)
                getattr(self, f"_on_{kind}")(argument)
        return self._result()

    def _result(self) -> FleetRun:
        slo = self._settings.slo
        since, until = self._load.warmup_seconds, self._load.duration_seconds
        counted = [request for request in self._requests if request.arrival >= since]
        good = sum(request.attains(slo.ttft_seconds, slo.itl_seconds) for request in counted)
        hours = self._pods.replica_hours(since, until)
        return FleetRun(
            requests=tuple(self._requests),
            attainment=good / len(counted),
            gpu_hours=hours * self._settings.machine.num_gpus,
            targets=tuple((at, replicas) for at, replicas in self._targets if at <= until),
            num_scale_events=sum(since <= at <= until for at, _ in self._targets),
            largest_queue=self._largest_queue,
            num_failed=sum(not request.is_finished or request.is_failed for request in self._requests),
        )

    def _later(self, when: float, kind: str, argument: int = 0) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (when, self._num_events, kind, argument))

    def _go_to(self, when: float) -> None:
        """Let every engine work until then."""
        self._now = when
        for engine in self._pods.engines():
            engine.advance(when)

    def _has_work(self) -> bool:
        return bool(self._gateway.held) or any(pod.num_in_flight for pod in self._pods.alive)

    def _arrive(self, request: FleetRequest) -> None:
        gateway = self._gateway
        gateway.num_requests += 1
        gateway.num_prompt_tokens += request.num_prompt
        gateway.last_request = self._now
        gateway.held.append(request)
        self._release()

    def _release(self) -> None:
        """Send held requests on, each to the replica with the fewest, until all are busy."""
        held, settings = self._gateway.held, self._settings
        most = settings.machine.max_num_seqs + settings.max_held_per_replica
        serving = self._pods.serving()
        while held and serving:
            best = min(serving, key=lambda pod: pod.num_in_flight)
            if best.engine is None or best.num_in_flight >= most:
                break
            best.engine.add(held.popleft(), self._now)
        if held and not self._is_pumping:
            self._is_pumping = True
            self._later(self._now + _PUMP_SECONDS, "pump")

    def _on_pump(self, _: int) -> None:
        self._is_pumping = False
        self._release()

    def _make_pod(self, startup_seconds: float | None = None) -> None:
        settings, number = self._settings, self._num_pods
        self._num_pods += 1
        spread = settings.startup_spread * (2 * uniform(settings.seed, 1, number) - 1)
        seconds = settings.startup_seconds * (1 + spread) if startup_seconds is None else startup_seconds
        pod = Pod(number=number, created=self._now, ready_at=self._now + seconds)
        self._pods.alive.append(pod)
        self._later(pod.ready_at, "ready", number)

    def _on_ready(self, number: int) -> None:
        for pod in self._pods.alive:
            if pod.number == number:
                pod.engine = self._make_engine(number)
        self._release()

    def _make_engine(self, number: int) -> Engine:
        machine = self._settings.machine
        if self._kind == "scheduler":
            return SchedulerEngine(machine, self._now)
        error = _STEP_ERROR * (2 * uniform(self._settings.seed, 2, number) - 1)
        return QuickEngine(machine, self._now, error)

    def _on_scrape(self, number: int) -> None:
        """Ask the policy; what it says takes effect a moment later."""
        settings = self._settings
        load = self._fleet_load(number)
        queue = sum(pod.figures.num_waiting for pod in load.replicas if pod.figures is not None)
        self._largest_queue = max(self._largest_queue, queue + len(self._gateway.held))
        if self._on_load is not None:
            self._on_load(load)
        wanted = self._policy.decide(load) if self._now <= self._load.duration_seconds else None
        if wanted is not None:
            bounded = min(settings.max_replicas, max(settings.min_replicas, wanted))
            self._later(self._now + settings.decision_delay_seconds, "apply", bounded)
        self._later(self._now + settings.scrape_interval_seconds, "scrape", number + 1)

    def _fleet_load(self, number: int) -> FleetLoad:
        settings, gateway = self._settings, self._gateway
        in_flight = sum(pod.num_in_flight for pod in self._pods.alive)
        demand = GatewayDemand(
            sampled_at=self._now,
            held_requests=len(gateway.held),
            held_prompt_tokens=sum(request.num_prompt for request in gateway.held),
            in_flight_requests=in_flight,
            in_flight_tokens=0,
            requests_total=gateway.num_requests,
            prompt_tokens_total=gateway.num_prompt_tokens,
            output_tokens_total=0.0,
            last_request_time=gateway.last_request,
        )
        failure = settings.scrape_failure_share
        return FleetLoad(
            at=self._now,
            current_replicas=len(self._pods.alive),
            replicas=tuple(
                pod.load(self._now, is_scraped=uniform(settings.seed, 3, number, pod.number) >= failure)
                for pod in self._pods.alive
            ),
            gateways=(GatewayLoad(name="gateway-0", started=0.0, demand=demand),),
        )

    def _on_apply(self, wanted: int) -> None:
        """Make, take back, drain or delete pods until as many stay as are wanted."""
        if wanted != self._target:
            self._target = wanted
            self._targets.append((self._now, wanted))
        self._fit()

    def _fit(self) -> None:
        staying = self._pods.staying()
        for pod in self._pods.draining()[: max(0, self._target - len(staying))]:
            pod.draining_since = None
        for _ in range(self._target - len(self._pods.staying())):
            self._make_pod()
        surplus = len(self._pods.staying()) - self._target
        victims = sorted(self._pods.staying(), key=lambda pod: (pod.is_ready, pod.num_in_flight, -pod.number))
        for pod in victims[: max(0, surplus)]:
            self._drain(pod)
        self._release()

    def _drain(self, pod: Pod) -> None:
        """Begin to remove a pod: what it has not started goes elsewhere, what it has is finished."""
        pod.draining_since = self._now
        if pod.engine is None:
            self._pods.end(pod, self._now)
            return
        self._gateway.held.extendleft(reversed(pod.engine.take_unstarted()))
        self._later(self._now, "drained", pod.number)

    def _on_drained(self, number: int) -> None:
        """End a draining pod once it is empty, or its time is up."""
        for pod in self._pods.draining():
            if pod.number != number or pod.draining_since is None:
                continue
            is_late = self._now >= pod.draining_since + self._settings.drain_timeout_seconds
            if pod.num_in_flight and not is_late:
                self._later(self._now + 1.0, "drained", number)
                return
            self._lose(pod)

    def _on_crash(self, _: int) -> None:
        """Let the replica with the most requests die; a new pod takes its place at once."""
        serving = self._pods.serving()
        if serving:
            self._lose(max(serving, key=lambda pod: (pod.num_in_flight, -pod.number)))
            self._fit()

    def _lose(self, pod: Pod) -> None:
        """End a pod; clients that had no token yet are served elsewhere, the others have lost."""
        assert pod.engine is not None  # noqa: S101 - only ready pods have requests to lose
        for request in pod.engine.take_all():
            if request.has_started:
                request.is_failed = True
            else:
                self._gateway.held.append(request)
        self._pods.end(pod, self._now)
        self._release()
