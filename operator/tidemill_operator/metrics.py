"""Every metric that the operator exports, in one place."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
