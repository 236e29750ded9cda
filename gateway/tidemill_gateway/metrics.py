"""The names and meanings of all metrics of the gateway.

Knows Prometheus types and labels. Refuses to know when something is counted.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TARGET_LABELS = ("namespace", "service")
FIRST_BYTE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
KEEP_SECONDS = 300.0
"""How long the series of a service that is gone stay: longer than any scraper waits between two looks."""


Service = tuple[str, str]
"""Namespace and name."""
NO_SERVICE: Service = ("", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRequests:
    """The series of one service's requests that end with one status, found once."""

    requests: Counter
    duration: Histogram
    first_byte: Histogram


class TrafficMetrics:
    """Requests as their clients see them: how many, how they end, how long they take."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "tidemill_gateway_requests_total",
            "Requests that have ended, by status; 499 means that the client left first.",
            (*TARGET_LABELS, "code"),
            registry=registry,
        )
        self.in_flight = Gauge(
            "tidemill_gateway_requests_in_flight",
            "Requests that the gateway is working on.",
            registry=registry,
        )
        self.streams_cut = Counter(
            "tidemill_gateway_streams_cut_total",
            "Responses that had begun and could not be finished, by who broke off.",
            (*TARGET_LABELS, "by"),
            registry=registry,
        )
        self.first_byte = Histogram(
            "tidemill_gateway_time_to_first_byte_seconds",
            "From the arrival of a request's headers to the first byte of a replica's body.",
            TARGET_LABELS,
            buckets=FIRST_BYTE_BUCKETS,
            registry=registry,
        )
        self.duration = Histogram(
            "tidemill_gateway_request_duration_seconds",
            "From the arrival of a request's headers to the end of its response.",
            TARGET_LABELS,
            buckets=DURATION_BUCKETS,
            registry=registry,
        )

    @property
    def per_service(self) -> tuple[Counter | Histogram, ...]:
        """Give those whose series stay when a service goes."""
        return (self.requests, self.streams_cut, self.first_byte, self.duration)


class DecisionMetrics:
    """What the gateway decides about requests: where they go, whether they may, whom they wake."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.placements = Counter(
            "tidemill_gateway_placements_total",
            "Choices of a replica, by reason: session, prefix, hash, load or two_choices.",
            (*TARGET_LABELS, "reason"),
            registry=registry,
        )
        self.upstream_retries = Counter(
            "tidemill_gateway_upstream_retries_total",
            "Requests sent to another replica before their first byte, by reason.",
            (*TARGET_LABELS, "reason"),
            registry=registry,
        )
        self.limited = Counter(
            "tidemill_gateway_limited_requests_total",
            "Requests refused because their tenant had reached a limit of its own.",
            TARGET_LABELS,
            registry=registry,
        )
        self.activations = Counter(
            "tidemill_gateway_activations_total",
            "Times that this gateway asked for a service at zero to wake, by outcome: asked or failed.",
            (*TARGET_LABELS, "outcome"),
            registry=registry,
        )

    @property
    def per_service(self) -> tuple[Counter | Histogram, ...]:
        """Give those whose series stay when a service goes."""
        return (self.placements, self.upstream_retries, self.limited, self.activations)


class ViewMetrics:
    """What the gateway sees now: services, replicas, who waits for them; and watches begun anew."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.known_services = Gauge(
            "tidemill_gateway_known_services",
            "InferenceServices that the gateway knows.",
            registry=registry,
        )
        self.ready_replicas = Gauge(
            "tidemill_gateway_ready_replicas",
            "Replicas that take requests, as this gateway sees them.",
            TARGET_LABELS,
            registry=registry,
        )
        self.held = Gauge(
            "tidemill_gateway_held_requests",
            "Requests that wait at this gateway for a replica or a turn.",
            TARGET_LABELS,
            registry=registry,
        )
        self.watch_restarts = Counter(
            "tidemill_gateway_watch_restarts_total",
            "Watches of the API server begun anew, by resource and reason.",
            ("resource", "reason"),
            registry=registry,
        )


class GatewayMetrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self.traffic = TrafficMetrics(self.registry)
        self.decisions = DecisionMetrics(self.registry)
        self.view = ViewMetrics(self.registry)
        self._clock = clock
        self._ended: dict[tuple[str, str, int], EndedRequests] = {}
        self._gone_since: dict[Service, float] = {}
        """Services with series here that are gone, and when that was first noticed."""

    def forget_gone(self, known: Collection[Service]) -> None:
        """Drop the series of services that have been gone so long that every scraper has read their last.

        `known`: the services that there are, as (namespace, name). Series of no service stay.
        """
        now = self._clock()
        gone: dict[Service, float] = {}
        for metric in (*self.traffic.per_service, *self.decisions.per_service):
            for service, values in _series_of(metric):
                if service == NO_SERVICE or service in known:
                    continue
                since = gone[service] = self._gone_since.get(service, now)
                if now - since >= KEEP_SECONDS:
                    metric.remove(*values)
        dropped = {service for service, since in gone.items() if now - since >= KEEP_SECONDS}
        self._ended = {key: found for key, found in self._ended.items() if key[:2] not in dropped}
        self._gone_since = {service: since for service, since in gone.items() if service not in dropped}

    def ended(self, namespace: str, service: str, code: int) -> EndedRequests:
        """Give the series to count in when a request ends."""
        key = (namespace, service, code)
        found = self._ended.get(key)
        if found is None:
            found = self._ended[key] = EndedRequests(
                requests=self.traffic.requests.labels(namespace, service, str(code)),
                duration=self.traffic.duration.labels(namespace, service),
                first_byte=self.traffic.first_byte.labels(namespace, service),
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
