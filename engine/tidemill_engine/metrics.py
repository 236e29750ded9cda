"""Every metric of the engine, by name, in one registry of the API process.

Knows names, buckets and the figures handed in. Does not know sockets or HTTP. The names with a colon are
vLLM's (with its `model_name` label): dashboards, KEDA triggers and the Gateway API inference extension read
them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill_engine.histogram import PairedHistogram
from tidemill_engine.messages import CoreReady, CoreStats
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
class Snapshot:
    """The gauges of one scrape."""

    ready: CoreReady | None
    stats: CoreStats | None
    is_ready: bool
    is_draining: bool
    num_in_flight: int
    num_in_flight_tokens: int
    loaded_bytes: int
    total_bytes: int


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
        self.registry.register(_SnapshotCollector(model_name, snapshot))
        self._model_name = model_name
        self._make_pairs()
        registry = self.registry
        self._http_requests = Counter(
            "tidemill_http_requests", "HTTP requests answered", ["route", "status"], registry=registry
        )
        self.num_ended = 0
        """Sequences that have ended, whatever the end."""
        self._tenants = TenantAccounts()
        self.registry.register(_TenantCollector(self._tenants))
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


class _TenantCollector(Collector):
    """Counters per tenant, of which there are a bounded number."""

    def __init__(self, accounts: TenantAccounts) -> None:
        self._accounts = accounts

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield every account, one label each."""
        families = {
            "requests": CounterMetricFamily(
                "tidemill_tenant_requests", "Sequences ended, by tenant", labels=["tenant"]
            ),
            "prompt_tokens": CounterMetricFamily(
                "tidemill_tenant_prompt_tokens", "Prompt tokens, by tenant", labels=["tenant"]
            ),
            "cached_tokens": CounterMetricFamily(
                "tidemill_tenant_cached_tokens",
                "Prompt tokens found in the cache, by tenant",
                labels=["tenant"],
            ),
            "output_tokens": CounterMetricFamily(
                "tidemill_tenant_generation_tokens", "Output tokens, by tenant", labels=["tenant"]
            ),
        }
        for tenant, usage in self._accounts.shown().items():
            for field_name, family in families.items():
                family.add_metric([tenant], getattr(usage, field_name))
        yield from families.values()


class _SnapshotCollector(Collector):
    """Gauges and counters that the core keeps, read at the scrape."""

    def __init__(self, model_name: str, snapshot: Callable[[], Snapshot]) -> None:
        self._model_name = model_name
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance, so that registering needs no snapshot."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of this moment."""
        now = self._snapshot()
        yield from self._own(now)
        if now.stats is not None:
            yield from self._core(now.stats)
        if now.ready is not None:
            yield self._cache_config(now.ready)
            yield _gauge(
                "tidemill_max_num_seqs", "Most requests that are computed at once", now.ready.max_num_seqs
            )

    def _own(self, now: Snapshot) -> Iterable[Metric]:
        yield _gauge("tidemill_engine_ready", "1 while new requests should be sent here", now.is_ready)
        yield _gauge("tidemill_engine_draining", "1 while the engine is on its way out", now.is_draining)
        yield _gauge("tidemill_requests_in_flight", "Sequences waiting or running", now.num_in_flight)
        yield _gauge(
            "tidemill_in_flight_tokens",
            "Prompt and output tokens of sequences in flight",
            now.num_in_flight_tokens,
        )
        yield _gauge("tidemill_model_loaded_bytes", "Weights read so far", now.loaded_bytes)
        yield _gauge("tidemill_model_size_bytes", "Weights to read", now.total_bytes)
        lora = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Adapters in use; there are none yet",
            labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
        )
        lora.add_metric(["0", "", ""], 1)
        yield lora

    def _core(self, stats: CoreStats) -> Iterable[Metric]:
        total = max(stats.num_total_blocks, 1)
        usage = 1 - stats.num_free_blocks / total
        num_swap_blocks_held = stats.num_swap_blocks - stats.num_free_swap_blocks
        swap_usage = num_swap_blocks_held / max(stats.num_swap_blocks, 1)
        gauges = {
            ("tidemill_requests_running", "num_requests_running", "num_running_requests"): stats.num_running,
            ("tidemill_requests_waiting", "num_requests_waiting", "num_waiting_requests"): stats.num_waiting,
            ("tidemill_requests_swapped", "num_requests_swapped"): stats.num_swapped,
            ("tidemill_kv_cache_usage_ratio", "kv_cache_usage_perc", "gpu_cache_usage_perc"): usage,
            ("tidemill_kv_swap_usage_ratio", "cpu_cache_usage_perc"): swap_usage,
        }
        for (ours, *theirs), value in gauges.items():
            yield _gauge(ours, ours.removeprefix("tidemill_").replace("_", " "), value)
            for name in theirs:
                yield self._labelled_gauge(name, value)
        yield _gauge("tidemill_kv_blocks_free", "KV blocks that nothing holds", stats.num_free_blocks)
        yield _gauge("tidemill_kv_blocks", "KV blocks in all", stats.num_total_blocks)
        yield _gauge(
            "tidemill_waiting_prompt_tokens", "Prompt tokens still to compute", stats.waiting_prompt_tokens
        )
        yield _gauge(
            "tidemill_admission_open",
            "1 while waiting requests may join those that run",
            stats.is_admission_open,
        )
        yield _gauge(
            "tidemill_kv_fragmentation_ratio",
            "Share of neighbours in block tables that are not neighbours in the cache",
            stats.kv_fragmentation_ratio,
        )
        yield _gauge(
            "tidemill_requests_hopeless", "Waiting requests that will miss their SLO", stats.num_hopeless
        )
        yield _gauge(
            "tidemill_effective_batch_tokens",
            "Tokens that a step may hold now, by the running requests' SLOs",
            stats.effective_batch_tokens,
        )
        yield CounterMetricFamily(
            "tidemill_padding_tokens",
            "Tokens computed for nobody, in padded batches",
            value=stats.padding_tokens,
        )
        counters = {
            "num_preemptions": stats.num_preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "generation_tokens": stats.generation_tokens,
            "prefix_cache_queries": stats.prefix_queries_tokens,
            "prefix_cache_hits": stats.prefix_hits_tokens,
        }
        for name, value in counters.items():
            yield from self._counter_pair(name, value)
        yield CounterMetricFamily("tidemill_steps", "Steps of the core's loop", value=stats.num_steps)

    def _labelled_gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", name.replace("_", " "), labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter_pair(self, name: str, value: float) -> Iterable[Metric]:
        text = name.replace("_", " ")
        ours = "preemptions" if name == "num_preemptions" else name
        yield CounterMetricFamily(f"tidemill_{ours}", text, value=value)
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        yield family

    def _cache_config(self, ready: CoreReady) -> Metric:
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The KV cache as it was made",
            labels=["model_name", "block_size", "num_gpu_blocks", "cache_dtype"],
        )
        family.add_metric([self._model_name, str(ready.block_size), str(ready.num_blocks), ready.dtype], 1)
        return family


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=float(value))
