"""What the autoscaler decides and what it remembers between decisions. Values only.

`ScalingState` goes through `status.scaling` (`state_json.py`), but for `memory`, which is only kept by the
running process: without it nothing that can be measured again within a minute is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill_operator.autoscaling.memory import Memory


@dataclass(frozen=True, kw_only=True)
class Term:
    """One signal's candidate: how many replicas it wants and the numbers that say so."""

    signal: str
    replicas: int
    message: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Clamp:
    """A rule that changed the number: min, max, pace, window, capacity, metrics, ..."""

    name: str
    before: int
    after: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a decision says about a condition of the service."""

    condition: Literal["MetricsAvailable", "ScalingActive", "ScalingLimited", "SLOMet", "AbleToScale"]
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A change of the number of replicas, and why."""

    at: float
    from_replicas: int
    to_replicas: int
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What was measured of this service; None: nothing yet."""

    startup_seconds: float | None = None
    """From a pod's creation to its first Ready: the longer ones count more."""
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    concurrency: float | None = None
    """Requests that one replica runs at once while others wait."""
    prompt_tokens_per_request: float | None = None
    output_tokens_per_request: float | None = None
    cached_share: float | None = None
    """Share of prompt tokens that the prefix cache has."""
    utilization: float | None = None
    """The share of its capacity up to which a replica keeps the objectives."""
    out_of_reach_share: float | None = None
    """Share of prompts that can't have their first token in time however many replicas there are, of late."""


@dataclass(frozen=True, kw_only=True)
class ScalingState:
    """What must survive a restart of the operator."""

    learned: Learned = field(default_factory=Learned)
    history: tuple[HistoryEntry, ...] = ()
    """The latest changes, newest first, at most 5."""
    wanted: tuple[tuple[float, int], ...] = ()
    """(time, replicas) of past recommendations that the window of scaling down still needs."""
    wanted_up: tuple[tuple[float, int], ...] = ()
    """(time, replicas) of what was wanted at least; empty where scaleUp has no window."""
    changes: tuple[tuple[float, int], ...] = ()
    """(time, change) that the pace rules still count."""
    last_scale_time: float | None = None
    last_request_time: float | None = None
    """When a request was last known to arrive or to be in flight anywhere."""
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How many replicas, why, and what it would have been without the clamps."""

    replicas: int
    reason: str
    """The winning signal or rule, one CamelCase word."""
    message: str
    state: ScalingState
    retry_after_seconds: float
    unclamped_replicas: int
    time_to_first_token_seconds: float | None = None
    """As measured lately, at the percentile of the SLO; None: too few samples."""
    inter_token_seconds: float | None = None
    terms: tuple[Term, ...] = ()
    clamps: tuple[Clamp, ...] = ()
    findings: tuple[Finding, ...] = ()
