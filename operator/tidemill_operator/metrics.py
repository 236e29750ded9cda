"""Every metric that the operator exports, in one place."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

REGISTRY: Final = CollectorRegistry()

RECONCILE_SECONDS: Final = Histogram(
    "tidemill_operator_reconcile_seconds",
    "How long one run over one InferenceService took",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
RECONCILES: Final = Counter(
    "tidemill_operator_reconciles",
    "Runs over an InferenceService by how they ended",
    labelnames=("result",),
    registry=REGISTRY,
)
STATUS_WRITES: Final = Counter(
    "tidemill_operator_status_writes", "Writes of an InferenceService's status", registry=REGISTRY
)
QUEUE_KEYS: Final = Gauge(
    "tidemill_operator_queue_keys", "InferenceServices that the work queue looks after", registry=REGISTRY
)
ENGINE_REQUESTS: Final = Counter(
    "tidemill_operator_engine_requests",
    "Requests to engines' admin ports by path and by whether they were answered",
    labelnames=("path", "result"),
    registry=REGISTRY,
)
IS_LEADER: Final = Gauge(
    "tidemill_operator_is_leader", "1 while this process holds the lease and acts", registry=REGISTRY
)
API_REQUESTS: Final = Counter(
    "tidemill_operator_api_requests",
    "Requests to the Kubernetes API by verb, kind and status code; 0 when there was no answer",
    labelnames=("verb", "kind", "code"),
    registry=REGISTRY,
)
WATCH_RESTARTS: Final = Counter(
    "tidemill_operator_watch_restarts",
    "Watches that ended and began anew, by what they watch and why they ended",
    labelnames=("shelf", "reason"),
    registry=REGISTRY,
)
CACHED_OBJECTS: Final = Gauge(
    "tidemill_operator_cached_objects", "Objects that the watches keep in memory", registry=REGISTRY
)
EVENTS: Final = Counter(
    "tidemill_operator_events",
    "Events written about InferenceServices, by type",
    labelnames=("type",),
    registry=REGISTRY,
)
SCRAPES: Final = Counter(
    "tidemill_autoscaler_scrapes",
    "Questions to engines and gateways by what was asked for (load, metrics, demand) and how it ended",
    labelnames=("source", "result"),
    registry=REGISTRY,
)
SCRAPE_SECONDS: Final = Histogram(
    "tidemill_autoscaler_scrape_seconds",
    "How long engines and gateways took to answer",
    labelnames=("source",),
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2),
    registry=REGISTRY,
)
SCALE_EVENTS: Final = Counter(
    "tidemill_autoscaler_scale_events",
    "Changes of the number of replicas that the autoscaler decided, by direction",
    labelnames=("direction",),
    registry=REGISTRY,
)

SERVICE_GAUGES: Final[Mapping[str, str]] = {
    "tidemill_autoscaler_desired_replicas": "Replicas that the autoscaler decided; advice in mode Advisory",
    "tidemill_autoscaler_unclamped_replicas": "Replicas that it would have decided without limits",
    "tidemill_autoscaler_min_replicas": "spec.scaling.minReplicas",
    "tidemill_autoscaler_max_replicas": "spec.scaling.maxReplicas",
    "tidemill_autoscaler_ready_replicas": "Replicas that are ready and do not drain",
    "tidemill_autoscaler_starting_replicas": "Replicas that exist and are not ready yet",
    "tidemill_autoscaler_draining_replicas": "Replicas that finish their streams before they go",
    "tidemill_autoscaler_kv_cache_usage_ratio": "Share of the KV cache that running requests hold",
    "tidemill_autoscaler_queue_length": "Requests that wait in engines and gateways",
    "tidemill_autoscaler_running_requests": "Requests that engines compute",
    "tidemill_autoscaler_time_to_first_token_seconds": "At the percentile of the SLO, as measured lately",
    "tidemill_autoscaler_inter_token_latency_seconds": "At the percentile of the SLO, as measured lately",
    "tidemill_autoscaler_startup_seconds": "From a pod's creation to ready, as learned",
    "tidemill_autoscaler_prompts_out_of_reach_ratio": "Share of prompts too long for any replica",
    "tidemill_autoscaler_metrics_available": "0 while too few engines and gateways answer",
    "tidemill_slo_time_to_first_token_seconds": "spec.scaling.slo.timeToFirstToken",
    "tidemill_slo_inter_token_latency_seconds": "spec.scaling.slo.interTokenLatency",
    "tidemill_slo_met": "0 while a latency objective is missed",
    "tidemill_drain_oldest_seconds": "For how long the oldest drain has been seen; 0 without one",
    "tidemill_drain_timeout_seconds": "spec.drain.timeout",
}
SIGNAL_GAUGE: Final = "tidemill_autoscaler_signal_replicas"


@dataclass(frozen=True, kw_only=True)
class ServiceRow:
    """What is exported of one service; a figure that nobody read is absent."""

    namespace: str
    name: str
    gauges: Mapping[str, float] = field(default_factory=dict)
    signals: Mapping[str, int] = field(default_factory=dict)


class FleetCollector(Collector):
    """Gauges per service, read at the scrape, so that a deleted service leaves nothing behind."""

    def __init__(self) -> None:
        self.rows: Callable[[], Iterable[ServiceRow]] = tuple

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield every family with the services that have a value."""
        rows = list(self.rows())
        for name, text in SERVICE_GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=("namespace", "service"))
            for row in rows:
                if name in row.gauges:
                    family.add_metric((row.namespace, row.name), row.gauges[name])
            yield family
        by_signal = GaugeMetricFamily(
            SIGNAL_GAUGE, "Replicas that each signal asks for", labels=("namespace", "service", "signal")
        )
        for row in rows:
            for signal, replicas in row.signals.items():
                by_signal.add_metric((row.namespace, row.name, signal), replicas)
        yield by_signal


FLEET: Final = FleetCollector()
REGISTRY.register(FLEET)
