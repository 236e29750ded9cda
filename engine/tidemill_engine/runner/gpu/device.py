"""The few things that only a GPU has: streams, events, graphs, pinned memory, and how much of it there is.

`CudaDevice` is all of the runner that needs a GPU. `HostDevice` does the same at once on the CPU, so that
everything around it is tested without one, with the kernels interpreted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from tidemill_engine.runner.gpu.memory import DeviceMemory
from tidemill_kernels.paged_attention.launch import Gpu

Lane = Literal["tokens", "out", "in"]
"""Chosen tokens to the host; swapped blocks to the host; swapped blocks from the host."""
LANES: tuple[Lane, ...] = ("tokens", "out", "in")


class Mark(Protocol):
    """A point in the work that was handed to a device."""

    def wait(self) -> None:
        """Return once the device has come so far."""

    def has_passed(self) -> bool:
        """Say whether the device has come so far."""

    def seconds_since(self, earlier: Mark) -> float:
        """Return the device's time between two points that it has passed."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """Work that can be done again on the same tensors.

    `work` is kept for those that it holds: a graph reads them where they were when it was captured.
    """

    work: Callable[[], None]
    replay: Callable[[], None]


class Device(Protocol):
    """Where steps are computed. Work is done in order, and none of these waits for it but `Mark.wait`.

    There is a stream for computing, and a lane beside it for each kind of copy.
    """

    @property
    def torch_device(self) -> torch.device:
        """Return where tensors live."""

    @property
    def gpu(self) -> Gpu:
        """Return what of it decides how kernels are laid out."""

    @property
    def compiles_late(self) -> bool:
        """Say whether a kernel is compiled when it is first wanted, and keeps its step waiting."""

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the host that the device can copy from and to by itself."""

    def send(self, host: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device of what is on the host, which may be changed at once."""

    def mark(self) -> Mark:
        """Return the point after all work handed over so far to the stream in use."""

    def copying(self, lane: Lane) -> AbstractContextManager[None]:
        """Let copies run in a lane, beside later steps: after all computing so far and the lane's own work.

        What they read and write must be kept, and left alone, until a mark in the lane has passed or been
        followed.
        """

    def follow(self, mark: Mark) -> None:
        """Let later work of the stream or lane in use begin after a mark of another; the host goes on."""

    def capture(self, work: Callable[[], None]) -> Captured:
        """Return work as one thing that costs the host almost nothing to start."""

    def memory(self) -> DeviceMemory:
        """Return how the device's memory is used, and forget the peak."""


class HostDevice:
    """The CPU in the place of a GPU: all work is done when it is handed over."""

    torch_device = torch.device("cpu")
    gpu = Gpu(num_multiprocessors=4)
    compiles_late = False

    class _Mark:
        def __init__(self) -> None:
            self.time = time.monotonic()

        def wait(self) -> None:
            """Return: the work is done."""

        def has_passed(self) -> bool:
            """Say yes: the work is done."""
            return True

        def seconds_since(self, earlier: Mark) -> float:
            """Return the time between two points."""
            if not isinstance(earlier, HostDevice._Mark):
                raise TypeError("marks of different devices")
            return self.time - earlier.time

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory."""
        return torch.empty(shape, dtype=dtype)

    def send(self, host: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        return host.clone()

    def mark(self) -> Mark:
        """Return now."""
        return HostDevice._Mark()

    @contextmanager
    def copying(self, lane: Lane) -> Iterator[None]:  # noqa: ARG002 - all is done at once
        """Do nothing."""
        yield

    def follow(self, mark: Mark) -> None:
        """Do nothing: all is done."""

    def capture(self, work: Callable[[], None]) -> Captured:
        """Keep the work and do it again."""
        return Captured(work=work, replay=work)

    def memory(self) -> DeviceMemory:
        """Pretend to a small device: enough for the tests' models."""
        return DeviceMemory(total_bytes=1 << 30, free_bytes=1 << 30, reserved_bytes=0, peak_bytes=0)


class CudaDevice:
    """One NVIDIA GPU."""

    compiles_late = True

    def __init__(self, index: int = 0) -> None:
        torch.cuda.set_device(index)
        self.torch_device = torch.device("cuda", index)
        found = torch.cuda.get_device_properties(index)
        self.gpu = Gpu(
            num_multiprocessors=found.multi_processor_count, capability=10 * found.major + found.minor
        )
        self._lanes = {lane: torch.cuda.Stream(self.torch_device) for lane in LANES}  # type: ignore[no-untyped-call]
        self._graphs = torch.cuda.graph_pool_handle()
        # One for all captures: what the allocator keeps of a stream's memory no other stream is given.
        self._warming = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    class _Mark:
        def __init__(self) -> None:
            self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self.event.record()

        def wait(self) -> None:
            """Return once the device has come so far."""
            self.event.synchronize()

        def has_passed(self) -> bool:
            """Say whether the device has come so far."""
            return bool(self.event.query())  # type: ignore[no-untyped-call]

        def seconds_since(self, earlier: Mark) -> float:
            """Return the device's time between two points."""
            if not isinstance(earlier, CudaDevice._Mark):
                raise TypeError("marks of different devices")
            return float(earlier.event.elapsed_time(self.event)) / 1000

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return pinned memory."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def send(self, host: torch.Tensor) -> torch.Tensor:
        """Copy by way of pinned memory, which torch gives to others only when the copy is done."""
        return host.pin_memory().to(self.torch_device, non_blocking=True)

    def mark(self) -> Mark:
        """Record an event on the current stream."""
        return CudaDevice._Mark()

    @contextmanager
    def copying(self, lane: Lane) -> Iterator[None]:
        """Use the lane's stream."""
        stream = self._lanes[lane]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def follow(self, mark: Mark) -> None:
        """Let the current stream wait for an event."""
        if not isinstance(mark, CudaDevice._Mark):
            raise TypeError("marks of different devices")
        torch.cuda.current_stream().wait_event(mark.event)

    def capture(self, work: Callable[[], None]) -> Captured:
        """Capture a CUDA graph, after a first run that compiles and allocates."""
        side = self._warming
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads' calls, such as those of NCCL's watchdog, do not spoil the capture.
        with torch.cuda.graph(graph, pool=self._graphs, capture_error_mode="thread_local"):
            work()
        return Captured(work=work, replay=graph.replay)

    def memory(self) -> DeviceMemory:
        """Ask the driver and torch's allocator."""
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        found = DeviceMemory(
            total_bytes=total, free_bytes=free, reserved_bytes=torch.cuda.memory_reserved(), peak_bytes=peak
        )
        torch.cuda.reset_peak_memory_stats()
        return found
