"""What only the running process remembers. Lost with it, and found again within a few minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill_operator.autoscaling.policy import SloTargets
from tidemill_operator.autoscaling.recurrence import Bursts


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrivals:
    """Requests that reached the gateways in one interval, which ended `at`; half an hour of them is kept."""

    at: float
    seconds: float
    requests: float
    prompt_tokens: float


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What the engines did lately: sums that fade, so that only their ratios mean anything."""

    prefill: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LatencyWindow:
    """Observations of late, which fade: how many lie in each bucket."""

    upper_bounds_seconds: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is said of the objectives, and when measurements last said the same."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    agreed_at: float
    slo: SloTargets


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Counters as last read, by who counted (a process that restarts is another one), and the sums."""

    at: float | None = None
    counters: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    arrivals: tuple[Arrivals, ...] = ()
    arrivals_until: float | None = None
    """When every gateway last answered: up to then arrivals are counted."""
    tokens: Tokens = field(default_factory=Tokens)
    time_to_first_token: LatencyWindow | None = None
    inter_token: LatencyWindow | None = None
    time_to_first_token_hour: LatencyWindow | None = None
    """The same for about an hour: the error budget."""
    settled_first: LatencyWindow | None = None
    settled_inter: LatencyWindow | None = None
    """Both latencies since the fleet last settled: what came of a change teaches nothing about fullness."""
    smooth: Mapping[str, float] = field(default_factory=dict)
    """Means over about a minute: `kv` (in replicas), `running`, `waiting`, `backlog_tokens`."""
    known_ready: frozenset[str] = frozenset()
    """Pods whose start-up time was counted."""
    last_change: float | None = None
    """When a pod last came, went or was asked for."""
    bursts: Bursts = ()
    """When, in the last two hours, a queue longer than allowed began, and what it needed."""
    wanted_down: tuple[tuple[float, int], ...] = ()
    """(time, replicas) of what would have done, queues included."""
    verdict: Verdict | None = None
    """What SLOMet said last."""
