"""What a person asks of the autoscaler: bounds, targets, pace, schedules. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["Auto", "Advisory"]


@dataclass(frozen=True, kw_only=True)
class SloTargets:
    """What clients are promised; None: nothing is promised."""

    time_to_first_token_seconds: float | None = None
    inter_token_seconds: float | None = None
    percentile: int = 95


@dataclass(frozen=True, kw_only=True)
class PacePolicy:
    """At most `value` pods, or percent of the replicas, added or removed within a period."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_seconds: float


@dataclass(frozen=True, kw_only=True)
class ScalingRules:
    """Rules of one direction, as in autoscaling/v2."""

    stabilization_window_seconds: float | None = None
    """None: 0 upwards; downwards what the learned start-up time calls for."""
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    policies: tuple[PacePolicy, ...] = ()
    """None of them: no bound on the pace."""


@dataclass(frozen=True, kw_only=True)
class Behavior:
    """The pace of both directions."""

    scale_up: ScalingRules = field(default_factory=ScalingRules)
    scale_down: ScalingRules = field(default_factory=ScalingRules)


@dataclass(frozen=True, kw_only=True)
class ScaleToZero:
    """When a service without requests goes to zero, and how waking it is bounded."""

    idle_after_seconds: float = 600.0
    activation_timeout_seconds: float = 300.0
    max_buffered_requests: int = 100


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """At least `min_replicas` for a duration from each time that the cron expression names."""

    name: str
    timezone: str
    cron: str
    duration_seconds: float
    min_replicas: int


@dataclass(frozen=True, kw_only=True)
class ScalingPolicy:
    """`spec.scaling`, checked and with its defaults."""

    min_replicas: int
    max_replicas: int
    mode: Mode = "Auto"
    kv_cache_target: float = 0.8
    queue_length_per_replica: float = 5.0
    slo: SloTargets = field(default_factory=SloTargets)
    behavior: Behavior = field(default_factory=Behavior)
    scale_to_zero: ScaleToZero | None = None
    schedules: tuple[Schedule, ...] = ()
    interval_seconds: float = 5.0
    stale_after_seconds: float = 15.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise ValueError(
                f"minReplicas {self.min_replicas} and maxReplicas {self.max_replicas} do not fit"
            )
        if not 0 < self.kv_cache_target <= 1:
            raise ValueError(f"kv_cache_target must be above 0 and at most 1, not {self.kv_cache_target}")
