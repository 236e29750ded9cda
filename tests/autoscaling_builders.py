"""Loads of services for the autoscaler's tests, with defaults: three healthy replicas and a gateway."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.autoscaling.model import (
    Decision,
    EngineFigures,
    FleetLoad,
    GatewayDemand,
    GatewayLoad,
    Histogram,
    ReplicaLoad,
    ScaleToZero,
    ScalingPolicy,
    ScalingState,
    SloTargets,
    StepTimes,
)

START = 1_800_000_000.0
TO_ZERO = ScaleToZero(idle_after_seconds=600)
BOUNDS = (0.1, 0.5, 1.0, 2.0, 4.0, float("inf"))
STEP_TIMES = StepTimes(
    fixed_seconds=0.03,
    token_seconds=0.0003,
    context_token_seconds=1e-7,
    attention_pair_seconds=1e-8,
    row_seconds=2e-5,
)


def make_policy(**changes: Any) -> ScalingPolicy:
    slo = SloTargets(time_to_first_token_seconds=3.0, inter_token_seconds=0.2)
    return replace(ScalingPolicy(min_replicas=1, max_replicas=16, slo=slo), **changes)


def make_figures(**changes: Any) -> EngineFigures:
    figures = EngineFigures(
        sampled_at=START,
        process_started=START - 1000,
        num_running=10,
        num_waiting=0,
        held_blocks=400,
        total_blocks=4000,
        block_size_tokens=16,
        max_num_seqs=48,
        waiting_prompt_tokens=0,
        prefill_tokens_total=0.0,
        cached_tokens_total=0.0,
        output_tokens_total=0.0,
        requests_total=0.0,
        step_times=STEP_TIMES,
    )
    return replace(figures, **changes)


def make_histogram(*counts: float) -> Histogram:
    return Histogram(upper_bounds_seconds=BOUNDS, cumulative_counts=counts)


def make_replica(number: int, **changes: Any) -> ReplicaLoad:
    replica = ReplicaLoad(
        uid=f"uid-{number}",
        name=f"chat-{number}",
        created=START - 1100,
        is_ready=True,
        ready_since=START - 1000,
        figures=make_figures(),
    )
    return replace(replica, **changes)


def make_demand(**changes: Any) -> GatewayDemand:
    demand = GatewayDemand(
        sampled_at=START,
        held_requests=0,
        held_prompt_tokens=0,
        in_flight_requests=0,
        in_flight_tokens=0,
        requests_total=0.0,
        prompt_tokens_total=0.0,
        output_tokens_total=0.0,
        last_request_time=START - 1,
    )
    return replace(demand, **changes)


def make_load(num_replicas: int = 3, **changes: Any) -> FleetLoad:
    load = FleetLoad(
        at=START,
        current_replicas=num_replicas,
        replicas=tuple(make_replica(number) for number in range(num_replicas)),
        gateways=(GatewayLoad(name="gateway-0", started=START - 5000, demand=make_demand()),),
    )
    return replace(load, **changes)


def with_figures(load: FleetLoad, **changes: Any) -> FleetLoad:
    """Change the figures of every replica that has any."""
    return replace(
        load,
        replicas=tuple(
            replace(r, figures=replace(r.figures, **changes)) if r.figures is not None else r
            for r in load.replicas
        ),
    )


def finding(decision: Decision, condition: str) -> str:
    """Give the status of a condition that a decision tells."""
    return next(f.status for f in decision.findings if f.condition == condition)


def gateways(*demands: object) -> tuple[GatewayLoad, ...]:
    """Build a gateway for each demand; None is one that does not answer."""
    return tuple(
        GatewayLoad(name=f"gateway-{i}", started=START - 5000, demand=demand)  # type: ignore[arg-type]
        for i, demand in enumerate(demands)
    )


class Scenario:
    """A service over time: traffic makes counters grow, decisions are carried along; nothing else changes."""

    def __init__(self, policy: ScalingPolicy | None = None, state: ScalingState | None = None) -> None:
        self.policy = policy or make_policy()
        self.state = state or ScalingState()
        self.decisions: list[Decision] = []
        self.now = START
        self.seen = make_load(0)
        self._requests = 0.0

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    def step(self, load: FleetLoad, *, rate: float = 0.0, prompt: int = 800, output: int = 170) -> Decision:
        """Let an interval pass with so many requests a second, and decide."""
        self.now += self.policy.interval_seconds
        self._requests += rate * self.policy.interval_seconds
        self.seen = self._at_now(load, prompt, output)
        decision = desired_replicas(self.seen, self.policy, self.state, self.now)
        self.state = decision.state
        self.decisions.append(decision)
        return decision

    def run(self, load: FleetLoad, seconds: float, **traffic: Any) -> Decision:
        """Let time pass with the same load."""
        for _ in range(int(seconds / self.policy.interval_seconds)):
            self.step(load, **traffic)
        return self.last

    def _at_now(self, load: FleetLoad, prompt: int, output: int) -> FleetLoad:
        ready = max(1, sum(r.figures is not None for r in load.replicas))
        each = self._requests / ready
        load = with_figures(
            load,
            sampled_at=self.now,
            requests_total=each,
            prefill_tokens_total=each * prompt,
            output_tokens_total=each * output,
        )
        gateways = tuple(
            replace(
                g,
                demand=replace(
                    g.demand,
                    sampled_at=self.now,
                    requests_total=self._requests / len(load.gateways),
                    prompt_tokens_total=self._requests * prompt / len(load.gateways),
                ),
            )
            if g.demand is not None
            else g
            for g in load.gateways
        )
        return replace(load, at=self.now, gateways=gateways)
