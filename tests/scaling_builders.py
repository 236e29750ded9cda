"""Builders with defaults for tests of what surrounds the scaling decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from operator_builders import make_pod
from tidemill_operator.autoscaling.model import (
    Clamp,
    Decision,
    EngineFigures,
    Finding,
    FleetLoad,
    GatewayDemand,
    ScaleToZero,
    ScalingPolicy,
    ScalingState,
    Term,
)
from tidemill_operator.fleet.facts import ServiceFacts
from tidemill_operator.fleet.keeper import Keeper
from tidemill_operator.fleet.scraper import EngineAnswer, GatewayAnswer
from tidemill_operator.keys import Key
from tidemill_operator.observed import GatewayView, PodView

KEY = Key("prod", "chat")
NOON = 1_796_040_000.0
NOON_TEXT = "2026-11-30T12:00:00Z"
LOAD: dict[str, Any] = {
    "started": 1000.5,
    "running": 3,
    "waiting": 2,
    "free_blocks": 25,
    "total_blocks": 100,
    "block_size": 16,
    "max_num_seqs": 64,
    "waiting_prompt_tokens": 40,
    "requests_total": 7,
    "computed_tokens_total": 1000,
    "generation_tokens_total": 300,
    "prefix_cache_hits_total": 50,
    "time_to_first_token": [[0.1, 2], [1.0, 5], [None, 6]],
    "inter_token_latency": [[None, 0]],
    "step_seconds": {"fixed": 0.01, "token": 1e-4, "context_token": 0, "attention_pair": 0, "row": 1e-5},
}
METRICS = """
vllm:num_requests_running{model_name="m"} 3
vllm:num_requests_waiting{model_name="m"} 2
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="200"} 1
vllm:prompt_tokens_total{model_name="m"} 900
vllm:generation_tokens_total{model_name="m"} 300
vllm:prefix_cache_hits_total 100
vllm:request_success_total{finished_reason="stop"} 4
vllm:request_success_total{finished_reason="length"} 3
vllm:time_to_first_token_seconds_bucket{le="0.1"} 2
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 6
process_start_time_seconds 1000.5
"""

DEMAND = {
    "held_requests": 4,
    "held_prompt_tokens": 400,
    "in_flight_requests": 2,
    "in_flight_tokens": 900,
    "requests_total": 10,
    "prompt_tokens_total": 1000,
    "output_tokens_total": 300,
    "last_request_time": 77.5,
}


def make_figures(**changes: Any) -> EngineFigures:
    """Build what an engine with nothing to do says at noon."""
    values: dict[str, Any] = {
        "sampled_at": NOON,
        "process_started": 1.0,
        "num_running": 0,
        "num_waiting": 0,
        "held_blocks": 0.0,
        "total_blocks": 100,
        "block_size_tokens": 16,
        **changes,
    }
    return EngineFigures(**values)


def make_demand(**changes: Any) -> GatewayDemand:
    """Build what a gateway nobody asks says at noon."""
    values: dict[str, Any] = {
        "sampled_at": NOON,
        "held_requests": 0,
        "held_prompt_tokens": 0,
        "in_flight_requests": 0,
        "in_flight_tokens": 0,
        "requests_total": 0.0,
        "prompt_tokens_total": 0.0,
        "output_tokens_total": 0.0,
        **changes,
    }
    return GatewayDemand(**values)


def make_policy(**changes: Any) -> ScalingPolicy:
    """Build a policy of one to eight replicas."""
    return ScalingPolicy(**{"min_replicas": 1, "max_replicas": 8, **changes})


def zero_policy(**changes: Any) -> ScalingPolicy:
    """Build a policy that may go to zero."""
    return make_policy(min_replicas=0, scale_to_zero=ScaleToZero(), **changes)


def scaling_pod(number: int, **changes: Any) -> PodView:
    """Build a ready pod with an address."""
    values = {"uid": f"uid-{number}", "ip": f"10.0.0.{number}", "is_ready": True, **changes}
    return make_pod("r1", number, **values)


def make_facts(**changes: Any) -> ServiceFacts:
    """Build a service with two ready replicas and one gateway."""
    values: dict[str, Any] = {
        "key": KEY,
        "uid": "uid-chat",
        "policy": make_policy(),
        "pods": (scaling_pod(1), scaling_pod(2)),
        "gateways": (GatewayView(name="gateway-0", ip="10.0.0.9"),),
        "current_replicas": 2,
        **changes,
    }
    return ServiceFacts(**values)


def engine_answer(**changes: Any) -> EngineAnswer:
    """Build a good answer of an engine."""
    return EngineAnswer(figures=make_figures(**changes))


def gateway_answer(**changes: Any) -> GatewayAnswer:
    """Build a good answer of a gateway that knows the service."""
    return GatewayAnswer(started=1.0, services={str(KEY): make_demand(**changes)})


class FakeDecide:
    """Decides what a test says, and remembers what it was told."""

    def __init__(self, replicas: int = 2) -> None:
        self.replicas = replicas
        self.reason = "Queue"
        self.findings: tuple[Finding, ...] = ()
        self.terms: tuple[Term, ...] = ()
        self.clamps: tuple[Clamp, ...] = ()
        self.state: ScalingState | None = None
        self.retry_after_seconds = 5.0
        self.fails: Exception | None = None
        self.loads: list[FleetLoad] = []
        self.states: list[ScalingState] = []

    def __call__(self, load: FleetLoad, policy: ScalingPolicy, state: ScalingState, now: float) -> Decision:
        if self.fails is not None:
            raise self.fails
        self.loads.append(load)
        self.states.append(state)
        wanted = replace(self.state or state, wanted=((now, self.replicas),))
        return Decision(
            replicas=self.replicas,
            reason=self.reason,
            message="7 requests wait",
            state=wanted,
            retry_after_seconds=self.retry_after_seconds,
            unclamped_replicas=self.replicas + 1,
            findings=self.findings,
            terms=self.terms,
            clamps=self.clamps,
        )


def make_keeper(
    decide: FakeDecide | None = None, status: dict[str, Any] | None = None, **facts: Any
) -> Keeper:
    """Build a keeper whose engines and gateway have answered."""
    keeper = Keeper(make_facts(**facts), status or {}, decide or FakeDecide())
    for pod in keeper.facts.pods:
        keeper.take_engine(pod.uid, engine_answer(num_waiting=3, held_blocks=25.0))
    keeper.take_gateways({"gateway-0": gateway_answer(held_requests=1)})
    return keeper
