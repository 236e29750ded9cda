"""A device's runner on the CPU, its kernels interpreted, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidemill_engine.config import (
    CacheConfig,
    CoreConfig,
    DeviceConfig,
    KvDtype,
    ModelConfig,
    SchedulerConfig,
)
from tidemill_engine.models.weights import open_weights
from tidemill_engine.parallel.group import Alone, RankGroup
from tidemill_engine.runner.gpu.device import Device, HostDevice
from tidemill_engine.runner.gpu.load import load_device_runner
from tidemill_engine.runner.gpu.runner import DeviceRunner


def load_on_host(
    directory: Path,
    *,
    device: Device | None = None,
    group: RankGroup | None = None,
    num_blocks: int = 64,
    block_size: int = 4,
    has_graphs: bool = False,
    max_num_seqs: int = 8,
    swap_bytes: int = 0,
    kv_dtype: KvDtype = "auto",
    is_chunked_prefill: bool = True,
    **model: Any,
) -> DeviceRunner:
    """Load a tiny model in float32 as onto a GPU."""
    config = CoreConfig(
        model=ModelConfig(uri=f"file://{directory}", **({"dtype": "float32"} | model)),
        cache=CacheConfig(
            num_blocks=num_blocks, block_size=block_size, swap_bytes=swap_bytes, dtype=kv_dtype
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=16, is_chunked_prefill=is_chunked_prefill
        ),
        device=DeviceConfig(has_graphs=has_graphs),
    )
    return load_device_runner(
        open_weights(directory), config, device or HostDevice(), group or Alone(), lambda _read, _total: None
    )
