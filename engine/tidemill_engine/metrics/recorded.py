"""What is recorded as it happens, and the registry of the API process that holds every metric by name.

Knows names and buckets. Does not know sockets or HTTP. The names with a colon are vLLM's (with its
`model_name` label): dashboards, KEDA triggers and the Gateway API inference extension read them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest

from tidemill_engine.histogram import PairedHistogram
from tidemill_engine.messages import CoreStats
from tidemill_engine.metrics.collected import Snapshot, SnapshotCollector, TenantCollector
from tidemill_engine.tenant_accounts import TenantAccounts, TenantUsage

SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
LONG_SECONDS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920)
BETWEEN_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, kw_only=True)
class SequenceTimes:
    """One sequence's life, on the monotonic clock."""

    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    arrival: float
    first_token: float | None
    end: float
    queue_seconds: float


class EngineMetrics:
    """The registry and everything that is recorded as it happens."""

    def __init__(self, model_name: str, snapshot: Callable[[], Snapshot]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(SnapshotCollector(model_name, snapshot))
        self._model_name = model_name
        self._make_pairs()
        registry = self.registry
        self._http_requests = Counter(
            "tidemill_http_requests", "HTTP requests answered", ["route", "status"], registry=registry
        )
        self.num_ended = 0
        """Sequences that have ended, whatever the end."""
        self._tenants = TenantAccounts()
        self.registry.register(TenantCollector(self._tenants))
        self._disconnects = Counter(
            "tidemill_client_disconnects",
            "Requests whose client went away or stopped reading",
            registry=registry,
        )

    def _make_pairs(self) -> None:
        """Make the histograms, each under our name and vLLM's."""
        self._ttft = self._histogram("time_to_first_token_seconds", "Body read to first token", SECONDS)
        self._itl = self._histogram(
            "inter_token_latency_seconds", "Between a sequence's tokens, in the core", BETWEEN_SECONDS
        )
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "Mean time per token after the first", BETWEEN_SECONDS
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Body read to last token", LONG_SECONDS)
        self._queue = self._histogram(
            "request_queue_time_seconds", "Body read to first scheduling", LONG_SECONDS
        )
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "First scheduling to first token", LONG_SECONDS
        )
        self._decode = self._histogram("request_decode_time_seconds", "First token to last", LONG_SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt tokens per sequence", TOKENS)
        self._generation = self._histogram("request_generation_tokens", "Output tokens per sequence", TOKENS)
        self._iteration = self._histogram("iteration_tokens_total", "Tokens computed per step", STEP_TOKENS)
        self._success = [
            Counter(
                f"{prefix}request_success",
                "Sequences ended",
                [*labels, "finished_reason"],
                registry=self.registry,
            )
            for prefix, labels in (("vllm:", ["model_name"]), ("tidemill_", []))
        ]

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> PairedHistogram:
        histogram = PairedHistogram(name, help_text, buckets, self._model_name)
        self.registry.register(histogram)
        return histogram

    def on_first_token(self, seconds: float) -> None:
        """Record a sequence's time to its first token."""
        self._ttft.observe(seconds)

    def on_sequence_end(self, times: SequenceTimes) -> None:
        """Record a sequence's end and, if it got anywhere, where its time went."""
        self.num_ended += 1
        self._success[0].labels(self._model_name, times.finish_reason).inc()
        self._success[1].labels(times.finish_reason).inc()
        self._e2e.observe(times.end - times.arrival)
        self._prompt.observe(times.prompt_tokens)
        self._generation.observe(times.output_tokens)
        if times.first_token is None:
            return
        self._queue.observe(times.queue_seconds)
        self._prefill.observe(max(times.first_token - times.arrival - times.queue_seconds, 0.0))
        decode_seconds = times.end - times.first_token
        self._decode.observe(decode_seconds)
        if times.output_tokens > 1:
            self._tpot.observe(decode_seconds / (times.output_tokens - 1))

    def on_stats(self, stats: CoreStats) -> None:
        """Record the per-step figures that came with the core's report."""
        self._iteration.observe_all(stats.iteration_tokens)
        self._itl.observe_all(stats.inter_token_seconds)

    def on_tenant_usage(self, tenant: str, usage: TenantUsage) -> None:
        """Count what an ended sequence has cost its tenant."""
        self._tenants.add(tenant, usage)

    def on_http(self, route: str, status: int) -> None:
        """Count an answered HTTP request."""
        self._http_requests.labels(route, str(status)).inc()

    def on_disconnect(self) -> None:
        """Count a client that went away before its answer was complete."""
        self._disconnects.inc()

    def latencies(self) -> dict[str, list[list[float | None]]]:
        """Return latencies with objectives as [upper bound, cumulative count]; the last has no bound."""
        histograms = {"time_to_first_token": self._ttft, "inter_token_latency": self._itl}
        return {
            name: [list(pair) for pair in histogram.cumulative()] for name, histogram in histograms.items()
        }

    def exposition(self) -> bytes:
        """Return everything in the Prometheus text format."""
        return generate_latest(self.registry)
