"""Where the check runs: a GPU and its limits, or a rehearsal on the CPU; and how things are timed there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tidemill_engine.runner.gpu.device import CudaDevice, Device, HostDevice
from tidemill_engine.runner.gpu.linears import FP8_CAPABILITY

_COPY_BYTES = 1 << 32
_PRODUCT_SIZE = 8192
_FLUSH_BYTES = 1 << 30
"""More than any cache holds, and so many that the host has launched the work before they are written."""
_REPEATS = 20


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device and what can be asked of it.

    dtype: of models; peaks are measured here: bytes/s that a plain copy reads and writes, FLOP/s of a large
    product in that dtype.
    """

    name: str
    device: Device
    is_rehearsal: bool
    dtype: torch.dtype
    copy_bytes_per_second: float
    product_flops: float
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def torch_device(self) -> torch.device:
        """Return where tensors live."""
        return self.device.torch_device

    @property
    def narrow_dtypes(self) -> tuple[torch.dtype, ...]:
        """Return the dtypes of 8 bits that its kernels know."""
        has_float8 = self.device.gpu.capability >= FP8_CAPABILITY
        return (torch.int8, torch.float8_e4m3fn) if has_float8 else (torch.int8,)

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the median time of some work, its inputs not in the device's cache."""
        if self.is_rehearsal:
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        return _gpu_seconds(work)


def find_gpu() -> Place | None:
    """Measure this machine's GPU; None if there is none."""
    if not torch.cuda.is_available():
        return None
    device = CudaDevice(0)
    properties = torch.cuda.get_device_properties(0)
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copying = _gpu_seconds(lambda: target.copy_(source))
    left, right = (
        torch.randn(_PRODUCT_SIZE, _PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    multiplying = _gpu_seconds(lambda: left @ right)
    return Place(
        name=properties.name,
        device=device,
        is_rehearsal=False,
        dtype=torch.bfloat16,
        copy_bytes_per_second=2 * _COPY_BYTES / copying,
        product_flops=2 * _PRODUCT_SIZE**3 / multiplying,
        facts={
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "multiprocessors": str(properties.multi_processor_count),
            "memory": f"{properties.total_memory / 2**30:.0f} GiB",
        },
    )


def rehearsal() -> Place:
    """Return the CPU in the place of a GPU; its peaks are made up."""
    return Place(
        name="rehearsal on the CPU",
        device=HostDevice(),
        is_rehearsal=True,
        dtype=torch.float32,
        copy_bytes_per_second=1e9,
        product_flops=1e9,
        facts={"torch": torch.__version__},
    )


def _gpu_seconds(work: Callable[[], object]) -> float:
    """Return the median of some runs by the device's clock, with the cache flushed before each."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        work()
    times = []
    for _ in range(_REPEATS):
        flush.zero_()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(float(began.elapsed_time(ended)) / 1000)
    return statistics.median(times)
