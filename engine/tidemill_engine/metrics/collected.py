"""What is read at each scrape: the core's figures and this process's, and the tenants' accounts.

Knows names and the figures handed in. Does not know where these come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemill_engine.messages import CoreReady, CoreStats
from tidemill_engine.tenant_accounts import TenantAccounts


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


class TenantCollector(Collector):
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


class SnapshotCollector(Collector):
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
            yield from self._counts(now.stats)
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

    def _counts(self, stats: CoreStats) -> Iterable[Metric]:
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
