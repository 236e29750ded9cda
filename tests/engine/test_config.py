from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill_engine.__main__ import make_parser
from tidemill_engine.config import (
    CacheConfig,
    CoreConfig,
    DeviceConfig,
    DynamicConfig,
    ModelConfig,
    OrderConfig,
    SchedulerConfig,
    Watermarks,
)
from tidemill_engine.errors import InvalidConfig
from tidemill_engine.serve_flags import make_config


def test_the_configuration_crosses_as_json_unchanged() -> None:
    config = CoreConfig(
        model=ModelConfig(uri="sim://x", dtype="float32", max_model_len=128, seed=3),
        cache=CacheConfig(block_size=16, num_blocks=7),
        scheduler=SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=99),
    )
    assert CoreConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (lambda: ModelConfig(uri="x", dtype="int3"), "dtype", "int3"),  # type: ignore[arg-type]
        (lambda: ModelConfig(uri="x", max_model_len=0), "max_model_len", "0"),
        (lambda: ModelConfig(uri="x", seed=-1), "seed", "-1"),
        (lambda: CacheConfig(block_size=33), "block_size", "33"),
        (lambda: CacheConfig(num_blocks=0), "num_kv_blocks", "0"),
        (lambda: CacheConfig(memory_bytes=0), "kv_cache_memory_bytes", "0"),
        (lambda: SchedulerConfig(max_num_seqs=0), "max_num_seqs", "0"),
        (lambda: SchedulerConfig(max_num_batched_tokens=0), "max_num_batched_tokens", "0"),
        (lambda: SchedulerConfig(max_chunk_tokens=0), "max_chunk_tokens", "0"),
        (lambda: CacheConfig(swap_bytes=-1), "swap_space", "-1"),
        (lambda: SchedulerConfig(kind="magic"), "scheduler", "magic"),  # type: ignore[arg-type]
        (lambda: SchedulerConfig(admission="open"), "admission", "open"),  # type: ignore[arg-type]
        (lambda: OrderConfig(policy="lifo"), "scheduling_policy", "lifo"),  # type: ignore[arg-type]
        (lambda: OrderConfig(default_ttft_slo_seconds=0.0), "default_ttft_slo", "0.0"),
        (lambda: OrderConfig(tenant_weights={"a": 0.0}), "tenant_weights[a]", "0.0"),
        (lambda: DynamicConfig(window_seconds=-1.0), "batch_window", "-1.0"),
        (lambda: DynamicConfig(preferred_sizes=(4, 0)), "preferred_batch_sizes", "0"),
        (lambda: Watermarks(high=0.6), "watermarks", "0.6"),
        (lambda: Watermarks(critical=0.9), "watermarks", "0.9"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(make: Callable[[], object], field: str, value: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make()
    assert caught.value.param == field
    assert value in caught.value.message


@pytest.mark.parametrize(
    "text", ["", "{}", '{"model": {"uri": "x", "dtype": "int3"}}', '{"model": {"uri": "x", "seed": -1}}']
)
def test_json_that_is_not_a_configuration_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        CoreConfig.from_json(text)


def config_of(*flags: str) -> CoreConfig:
    return make_config(make_parser().parse_args(["serve", "sim://x", *flags]), None).core


def test_without_flags_the_scheduler_is_continuous_first_come_first_served_and_caches_prefixes() -> None:
    config = config_of()
    assert config.scheduler == SchedulerConfig()
    assert (config.scheduler.kind, config.scheduler.order.policy) == ("continuous", "fifo")
    assert (config.cache.is_prefix_caching, config.cache.swap_bytes) == (True, 0)


def test_the_flags_of_devices_reach_the_core_and_a_gpu_has_sizes_of_its_own() -> None:
    plain = config_of("--device", "cpu")
    assert (plain.cache.block_size, plain.scheduler.max_num_batched_tokens) == (32, 2048)
    assert plain.scheduler.chunk_tokens == 512
    assert config_of("--device", "cpu", "--max-num-batched-tokens", "256").scheduler.chunk_tokens == 256
    assert config_of("--device", "cpu", "--max-chunk-tokens", "64").scheduler.chunk_tokens == 64
    flags = "--device cuda --tensor-parallel-size 4 --attention-backend tidemill --enforce-eager"
    config = config_of(*flags.split())
    assert config.device == DeviceConfig(
        name="cuda", tensor_parallel_size=4, attention_backend="tidemill", has_graphs=False
    )
    assert (config.cache.block_size, config.scheduler.max_num_batched_tokens) == (16, 4096)
    assert config.scheduler.chunk_tokens == 4096
    assert config_of(*flags.split(), "--block-size", "64").cache.block_size == 64
    assert CoreConfig.from_json(config.to_json()) == config


def test_classes_give_way_only_where_there_are_any() -> None:
    config = config_of("--preempt-lower-priority", "--scheduling-policy", "priority")
    assert config.scheduler.is_preempting_lower_classes


@pytest.mark.parametrize("others", ["", "--scheduler static --scheduling-policy priority"])
def test_classes_that_a_scheduler_does_not_know_can_not_give_way(others: str) -> None:
    with pytest.raises(InvalidConfig, match="knows classes"):
        config_of("--preempt-lower-priority", *others.split())


@pytest.mark.parametrize(
    "changes", [{"name": "tpu"}, {"tensor_parallel_size": 0}, {"attention_backend": "best"}]
)
def test_a_device_that_can_not_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        DeviceConfig(**changes)  # type: ignore[arg-type]


def test_every_flag_of_the_scheduler_reaches_the_core() -> None:
    flags = (
        "--scheduler dynamic --scheduling-policy slo --admission strict --kv-watermarks 0.8,0.5,0.9 "
        "--no-enable-chunked-prefill --no-enable-prefix-caching --swap-space 0.5 --tenant-weights a=2,b=0.5 "
        "--default-ttft-slo 3 --batch-window 0.25 --preferred-batch-sizes 4,8"
    )
    config = config_of(*flags.split())
    assert config.scheduler == SchedulerConfig(
        kind="dynamic",
        is_chunked_prefill=False,
        admission="strict",
        watermarks=Watermarks(high=0.8, low=0.5, critical=0.9),
        order=OrderConfig(policy="slo", default_ttft_slo_seconds=3.0, tenant_weights={"a": 2.0, "b": 0.5}),
        dynamic=DynamicConfig(window_seconds=0.25, preferred_sizes=(4, 8)),
    )
    assert config.cache == CacheConfig(is_prefix_caching=False, swap_bytes=1 << 29)
    assert CoreConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "flags",
    [
        "--tenant-weights a",
        "--tenant-weights a=much",
        "--kv-watermarks 0.9,0.7",
        "--kv-watermarks 0.7,0.9,0.95",
        "--preferred-batch-sizes 4,x",
        "--scheduler magic",
        "--swap-space lots",
    ],
)
def test_a_flag_that_means_nothing_ends_the_command_line(
    flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        config_of(*flags.split())
    assert flags.split(maxsplit=1)[0] in capsys.readouterr().err
