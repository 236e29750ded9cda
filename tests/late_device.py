"""A device whose copies are done as late as they may be, so that whatever relies on one too early is seen.

Computing is done at once. A copy in a lane waits until somebody waits for it: the host for a mark, or the
computing or another lane by `follow`. It keeps nothing alive: memory that is gone by then is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tidemill_engine.runner.gpu.device import LANES, HostDevice, Lane, Mark


class ReleasedTooEarlyError(AssertionError):
    """Memory was given back while a copy still needed it."""


class _Borrowed:
    """A tensor's place in memory, without keeping that memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._weak = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._meta = (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def tensor(self) -> torch.Tensor:
        if self._weak.expired():  # type: ignore[no-untyped-call]
            raise ReleasedTooEarlyError("memory was given back before its copy had ended")
        storage = torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)
        dtype, offset, shape, stride = self._meta
        return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)


class _Deferring(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands copies over instead of doing them."""

    def __init__(self, defer: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._defer = defer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        target, source = _Borrowed(args[0]), _Borrowed(args[1])

        def copy() -> None:
            target.tensor().copy_(source.tensor())

        self._defer(copy)
        return args[0]


@dataclass(frozen=True, kw_only=True)
class _LateMark:
    """A place in a lane; None: of computing, which is always done."""

    device: LateDevice
    lane: Lane | None
    place: int

    def wait(self) -> None:
        if self.lane is not None:
            self.device.finish(self.lane, self.place)

    def has_passed(self) -> bool:
        return self.lane is None or self.device.num_done[self.lane] >= self.place

    def seconds_since(self, earlier: Mark) -> float:
        assert self.has_passed()
        assert earlier.has_passed()
        return 1.0


class LateDevice(HostDevice):
    """Does copies only when they are waited for."""

    def __init__(self) -> None:
        self._works: dict[Lane, list[Callable[[], None]]] = {lane: [] for lane in LANES}
        self.num_done: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._current: Lane | None = None

    def mark(self) -> Mark:
        place = len(self._works[self._current]) if self._current is not None else 0
        return _LateMark(device=self, lane=self._current, place=place)

    @contextmanager
    def copying(self, lane: Lane) -> Iterator[None]:
        assert self._current is None
        self._current = lane
        try:
            with _Deferring(self._works[lane].append):
                yield
        finally:
            self._current = None

    def follow(self, mark: Mark) -> None:
        if self._current is None:
            mark.wait()
        else:
            self._works[self._current].append(mark.wait)

    def num_waiting(self, lane: Lane) -> int:
        """Return how many things of a lane are not done."""
        return len(self._works[lane]) - self.num_done[lane]

    def finish(self, lane: Lane, place: int | None = None) -> None:
        """Do a lane's work up to a place, or all."""
        works = self._works[lane]
        end = len(works) if place is None else place
        while self.num_done[lane] < end:
            work = works[self.num_done[lane]]
            self.num_done[lane] += 1
            work()
