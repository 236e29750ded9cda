"""What the autoscaler is told about a service's load: pods, engines and gateways, as frozen values.

Times are unix seconds, durations seconds. A figure that was not read is None: missing is never zero.
Counters (`..._total`) only grow while `process_started` stays the same. Knows nothing of where figures come
from, nor of what is made of them: the rules are in `policy.py`, what is decided in `decision.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill_operator.autoscaling.decision import (
    Clamp,
    Decision,
    Finding,
    HistoryEntry,
    Learned,
    ScalingState,
    Term,
)
from tidemill_operator.autoscaling.policy import (
    Behavior,
    PacePolicy,
    ScaleToZero,
    ScalingPolicy,
    ScalingRules,
    Schedule,
    SloTargets,
)

__all__ = [
    "Behavior",
    "Clamp",
    "Decision",
    "EngineFigures",
    "Finding",
    "FleetLoad",
    "GatewayDemand",
    "GatewayLoad",
    "Histogram",
    "HistoryEntry",
    "Learned",
    "PacePolicy",
    "ReplicaLoad",
    "ScaleToZero",
    "ScalingPolicy",
    "ScalingRules",
    "ScalingState",
    "Schedule",
    "SloTargets",
    "StepTimes",
    "Term",
]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """A latency histogram as it is exposed: counts of observations at most each bound, which ascend."""

    upper_bounds_seconds: tuple[float, ...]
    """The last one is infinity."""
    cumulative_counts: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """How long the engine's steps take, as it has learned it: seconds for each thing that a step contains."""

    fixed_seconds: float
    token_seconds: float
    context_token_seconds: float
    """For each token of context that a decoding request attends to."""
    attention_pair_seconds: float
    """For each pair of a prompt token and one before it."""
    row_seconds: float
    """For each request that samples a token."""


@dataclass(frozen=True, kw_only=True)
class EngineFigures:
    """What one engine said of itself, at `sampled_at`; engines other than ours leave out much."""

    sampled_at: float
    process_started: float
    num_running: int
    num_waiting: int
    held_blocks: float
    """KV blocks of running requests; what only the prefix cache keeps is free. May be use x total."""
    total_blocks: int
    block_size_tokens: int
    max_num_seqs: int | None = None
    waiting_prompt_tokens: int | None = None
    """Prompt tokens of waiting requests that are neither computed nor cached."""
    prefill_tokens_total: float | None = None
    """Prompt tokens that were computed; cached ones are not among them."""
    cached_tokens_total: float | None = None
    """Prompt tokens that the prefix cache had."""
    output_tokens_total: float | None = None
    requests_total: float | None = None
    """Requests that have ended, whatever the end."""
    time_to_first_token: Histogram | None = None
    inter_token: Histogram | None = None
    step_times: StepTimes | None = None

    @property
    def capacity_tokens(self) -> int:
        """Return how many tokens the KV cache holds."""
        return self.total_blocks * self.block_size_tokens

    @property
    def kv_use(self) -> float:
        """Return the share of the KV cache that running requests hold."""
        return self.held_blocks / self.total_blocks if self.total_blocks else 0.0


@dataclass(frozen=True, kw_only=True)
class ReplicaLoad:
    """One pod of the service that exists and is meant to serve; pods of other owners are never here."""

    uid: str
    name: str
    created: float
    is_ready: bool
    is_draining: bool = False
    """Being removed: counts neither as capacity nor as coming."""
    is_unschedulable: bool = False
    ready_since: float | None = None
    figures: EngineFigures | None = None
    """None: the last scrape failed or the answer had no such series."""
    missing_reason: str = ""

    @property
    def is_starting(self) -> bool:
        """Say whether the pod is coming: neither ready nor on its way out."""
        return not self.is_ready and not self.is_draining


@dataclass(frozen=True, kw_only=True)
class GatewayDemand:
    """What one gateway said of this service."""

    sampled_at: float
    held_requests: int
    held_prompt_tokens: int
    in_flight_requests: int
    in_flight_tokens: int
    requests_total: float
    prompt_tokens_total: float
    output_tokens_total: float
    last_request_time: float | None = None


@dataclass(frozen=True, kw_only=True)
class GatewayLoad:
    """One gateway pod; `demand` is None where it did not answer: a silent gateway is not an idle one."""

    name: str
    started: float
    demand: GatewayDemand | None
    missing_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class FleetLoad:
    """Everything known about a service's load at one time."""

    at: float
    current_replicas: int
    """What the service's Deployments ask for together, replicas that drain included."""
    replicas: tuple[ReplicaLoad, ...]
    gateways: tuple[GatewayLoad, ...]
    activation_request_time: float | None = None
    """When a gateway last asked for a service at zero to be woken."""
    settled_replicas: int | None = None
    """How many there are apart from what a rollout or a canary adds, or lacks, for a while; None: all."""
    has_been_ready: bool = True
    """Whether any replica of the service was ever ready: one that never was is not scaled to zero."""
