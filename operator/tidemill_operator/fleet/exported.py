"""What the operator exports of each service as metrics: its scaling, its objectives and its drains.

Knows which figure goes under which name. Refuses to decide anything, and to know HTTP.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill_operator.fleet.keeper import Keeper
from tidemill_operator.keys import Key
from tidemill_operator.metrics import ServiceRow
from tidemill_operator.observed import PodView
from tidemill_operator.situation import METRICS_AVAILABLE, SLO_MET


@dataclass(frozen=True, kw_only=True)
class Drains:
    """The drains of one service."""

    oldest_seconds: float = 0.0
    timeout_seconds: float = 0.0


@dataclass(kw_only=True)
class _Seen:
    since: dict[str, float] = field(default_factory=dict)
    timeout_seconds: float = 0.0


class DrainTimes:
    """Since when each draining replica has been seen to drain, by this process."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}

    @property
    def keys(self) -> frozenset[Key]:
        """Give the services that were noted."""
        return frozenset(self._seen)

    def note(self, key: Key, pods: Iterable[PodView], timeout_seconds: float, now: float) -> None:
        """Take in the replicas that drain now."""
        before = self._seen.get(key, _Seen()).since
        draining = [pod.uid for pod in pods if pod.is_terminating or not pod.is_routable]
        since = {uid: before.get(uid, now) for uid in draining}
        self._seen[key] = _Seen(since=since, timeout_seconds=timeout_seconds)

    def of(self, key: Key, now: float) -> Drains:
        """Give the drains of one service."""
        seen = self._seen.get(key, _Seen())
        oldest = max((now - since for since in seen.since.values()), default=0.0)
        return Drains(oldest_seconds=oldest, timeout_seconds=seen.timeout_seconds)

    def forget(self, key: Key) -> None:
        """Drop a service."""
        self._seen.pop(key, None)


def row_of(key: Key, keeper: Keeper | None, drains: Drains) -> ServiceRow:
    """Write everything known of one service under the names of the metrics."""
    gauges: dict[str, float | None] = {
        "tidemill_drain_oldest_seconds": drains.oldest_seconds,
        "tidemill_drain_timeout_seconds": drains.timeout_seconds,
    }
    signals: dict[str, int] = {}
    if keeper is not None:
        gauges |= _limits(keeper) | _figures(keeper) | _truths(keeper)
        signals = {term.signal: term.replicas for term in keeper.decision.terms} if keeper.decision else {}
    known = {name: value for name, value in gauges.items() if value is not None}
    return ServiceRow(namespace=key.namespace, name=key.name, gauges=known, signals=signals)


def _limits(keeper: Keeper) -> dict[str, float | None]:
    policy = keeper.facts.policy
    return {
        "tidemill_autoscaler_min_replicas": policy.min_replicas,
        "tidemill_autoscaler_max_replicas": policy.max_replicas,
        "tidemill_slo_time_to_first_token_seconds": policy.slo.time_to_first_token_seconds,
        "tidemill_slo_inter_token_latency_seconds": policy.slo.inter_token_seconds,
    }


def _figures(keeper: Keeper) -> dict[str, float | None]:
    decision, figures = keeper.decision, keeper.figures
    if decision is None:
        return {}
    return {
        "tidemill_autoscaler_desired_replicas": decision.replicas,
        "tidemill_autoscaler_unclamped_replicas": decision.unclamped_replicas,
        "tidemill_autoscaler_ready_replicas": figures.num_ready,
        "tidemill_autoscaler_starting_replicas": figures.num_starting,
        "tidemill_autoscaler_draining_replicas": figures.num_draining,
        "tidemill_autoscaler_kv_cache_usage_ratio": figures.kv_cache_use,
        "tidemill_autoscaler_queue_length": figures.queue_length,
        "tidemill_autoscaler_running_requests": figures.num_running,
        "tidemill_autoscaler_time_to_first_token_seconds": figures.time_to_first_token_seconds,
        "tidemill_autoscaler_inter_token_latency_seconds": figures.inter_token_seconds,
        "tidemill_autoscaler_startup_seconds": decision.state.learned.startup_seconds,
        "tidemill_autoscaler_prompts_out_of_reach_ratio": decision.state.learned.out_of_reach_share,
    }


def _truths(keeper: Keeper) -> dict[str, float | None]:
    found = {condition.type: condition for condition in keeper.view.conditions}
    named = {METRICS_AVAILABLE: "tidemill_autoscaler_metrics_available", SLO_MET: "tidemill_slo_met"}
    return {
        name: float(found[kind].is_true)
        for kind, name in named.items()
        if kind in found and not found[kind].is_unknown
    }
