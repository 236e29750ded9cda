"""The names and meanings of all metrics of the gateway.

Knows Prometheus types and labels. Refuses to know when something is counted.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TARGET_LABELS = ("namespace", "service")
FIRST_BYTE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


Service = tuple[str, str]
"""Namespace and name."""
NO_SERVICE: Service = ("", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRequests:
    """The series of one service's requests that end with one status, found once."""

    requests: Counter
    duration: Histogram
    first_byte: Histogram


class GatewayMetrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ended: dict[tuple[str, str, int], EndedRequests] = {}
        self._gone: set[Service] = set()
        """Services with series here that were gone when it was last looked."""
        self.requests = Counter(
            "tidemill_gateway_requests_total",
            "Requests that have ended, by status; 499 means that the client left first.",
            (*TARGET_LABELS, "code"),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "tidemill_gateway_requests_in_flight",
            "Requests that the gateway is working on.",
            registry=self.registry,
        )
        self.upstream_retries = Counter(
            "tidemill_gateway_upstream_retries_total",
            "Requests sent to another replica before their first byte, by reason.",
            (*TARGET_LABELS, "reason"),
            registry=self.registry,
        )
        self.placements = Counter(
            "tidemill_gateway_placements_total",
            "Choices of a replica, by reason: session, prefix, hash, load or two_choices.",
            (*TARGET_LABELS, "reason"),
            registry=self.registry,
        )
        self.limited = Counter(
            "tidemill_gateway_limited_requests_total",
            "Requests refused because their tenant had reached a limit of its own.",
            TARGET_LABELS,
            registry=self.registry,
        )
        self.activations = Counter(
            "tidemill_gateway_activations_total",
            "Times that this gateway asked for a service at zero to wake, by outcome: asked or failed.",
            (*TARGET_LABELS, "outcome"),
            registry=self.registry,
        )
        self.held = Gauge(
            "tidemill_gateway_held_requests",
            "Requests that wait at this gateway for a replica or a turn.",
            TARGET_LABELS,
            registry=self.registry,
        )
        self.streams_cut = Counter(
            "tidemill_gateway_streams_cut_total",
            "Responses that had begun and could not be finished, by who broke off.",
            (*TARGET_LABELS, "by"),
            registry=self.registry,
        )
        self.first_byte = Histogram(
            "tidemill_gateway_time_to_first_byte_seconds",
            "From the arrival of a request's headers to the first byte of a replica's body.",
            TARGET_LABELS,
            buckets=FIRST_BYTE_BUCKETS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "tidemill_gateway_request_duration_seconds",
            "From the arrival of a request's headers to the end of its response.",
            TARGET_LABELS,
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "tidemill_gateway_watch_restarts_total",
            "Watches of the API server begun anew, by resource and reason.",
            ("resource", "reason"),
            registry=self.registry,
        )
        self.known_services = Gauge(
            "tidemill_gateway_known_services",
            "InferenceServices that the gateway knows.",
            registry=self.registry,
        )
        self.ready_replicas = Gauge(
            "tidemill_gateway_ready_replicas",
            "Replicas that take requests, as this gateway sees them.",
            TARGET_LABELS,
            registry=self.registry,
        )

    def forget_gone(self, known: Collection[Service]) -> None:
        """Drop the series of services that were gone at the last call already: each is read once more.

        `known`: the services that there are, as (namespace, name). Series of no service stay.
        """
        gone: set[Service] = set()
        for metric in self._per_service:
            for service, values in _series_of(metric):
                if service == NO_SERVICE or service in known:
                    continue
                gone.add(service)
                if service in self._gone:
                    metric.remove(*values)
        self._ended = {key: found for key, found in self._ended.items() if key[:2] not in gone & self._gone}
        self._gone = gone

    @property
    def _per_service(self) -> tuple[Counter | Histogram, ...]:
        return (
            self.requests,
            self.upstream_retries,
            self.placements,
            self.limited,
            self.activations,
            self.streams_cut,
            self.first_byte,
            self.duration,
        )

    def ended(self, namespace: str, service: str, code: int) -> EndedRequests:
        """Give the series to count in when a request ends."""
        key = (namespace, service, code)
        found = self._ended.get(key)
        if found is None:
            found = self._ended[key] = EndedRequests(
                requests=self.requests.labels(namespace, service, str(code)),
                duration=self.duration.labels(namespace, service),
                first_byte=self.first_byte.labels(namespace, service),
            )
        return found


def _series_of(metric: Counter | Histogram) -> Iterator[tuple[Service, tuple[str, ...]]]:
    """Yield the service and the label values of every series of a metric that counts by service."""
    seen: set[tuple[str, ...]] = set()
    for family in metric.collect():
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            values = tuple(labels.values())
            if values not in seen:
                seen.add(values)
                yield (labels["namespace"], labels["service"]), values
