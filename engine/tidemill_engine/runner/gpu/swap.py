"""Blocks between the device's cache and a pool in the host's memory, and within the cache.

A block of the pool holds all layers, so that it moves in one piece. Out: blocks are gathered on the device,
which leaves them free to be written, and cross to the host beside later steps, whose tokens do not wait; in:
the other way round, and the step waits. Knows no requests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tidemill_engine.batch import copy_in_order
from tidemill_engine.runner.gpu.staging import send_together
from tidemill_kernels.block_copy import copy_blocks

if TYPE_CHECKING:
    from tidemill_engine.models.device_llama import DeviceCache
    from tidemill_engine.runner.gpu.device import Device, Mark
    from tidemill_engine.step import IntArray, SchedulerOutput

POOL_PIECE_BYTES = 1 << 30
"""torch rounds pinned memory up to a power of two: one tensor of 20 GiB would take 32."""
STAGING_BYTES = 128 << 20
"""Gathered blocks on their way at once, in each direction: what more there is waits for those before it."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Copies between device and host that have ended since they were asked about last."""

    num_blocks: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """Copies on their way."""

    num_blocks: int
    began: Mark
    ended: Mark


@dataclass(frozen=True, kw_only=True)
class _Leaving:
    """Gathered blocks that must be kept until they have come to their places of the pool."""

    num_blocks: int
    places: frozenset[int]
    gathered: list[torch.Tensor]
    ended: Mark


class _Plane:
    """What moves with a block in one dtype: all layers' parts of the cache, and the pool for them."""

    def __init__(self, device: Device, parts: list[torch.Tensor], num_swap_blocks: int) -> None:
        self.parts = parts
        shape, dtype = (len(parts), *parts[0].shape[1:]), parts[0].dtype
        self.block_bytes = math.prod(shape) * dtype.itemsize
        self._per_piece = max(1, POOL_PIECE_BYTES // self.block_bytes)
        self._pool = [
            device.host_tensor((min(self._per_piece, num_swap_blocks - done), *shape), dtype)
            for done in range(0, num_swap_blocks, self._per_piece)
        ]

    def place(self, place: int) -> torch.Tensor:
        """Return a place of the pool: `[num_parts, ...]`."""
        found: torch.Tensor = self._pool[place // self._per_piece][place % self._per_piece]
        return found

    def room(self, count: int) -> torch.Tensor:
        """Return room on the device for so many blocks, as the pool holds them: `[count, num_parts, ...]`."""
        part = self.parts[0]
        return torch.empty((count, len(self.parts), *part.shape[1:]), dtype=part.dtype, device=part.device)


class BlockMover:
    """Carries out a step's copies."""

    def __init__(self, device: Device, cache: DeviceCache, num_swap_blocks: int) -> None:
        self._device = device
        self._planes = [_Plane(device, parts, num_swap_blocks) for parts in cache.planes]
        block_bytes = sum(plane.block_bytes for plane in self._planes)
        self._most_at_once = max(1, STAGING_BYTES // block_bytes)
        self._leaving: deque[_Leaving] = deque()
        self._timed: list[_Timed] = []

    def carry_out(self, output: SchedulerOutput) -> None:
        """Do a step's copies in their order.

        Those within the cache are not timed: they are far cheaper than a way to the host, which is what
        preemption weighs against computing again.
        """
        for pairs in self._portions(output.swap_out):
            self._out(pairs)
        for pairs in self._portions(output.swap_in):
            self._in(pairs)
        copy_in_order(output.block_copies, self._within)

    def ended(self) -> Moved:
        """Return what has ended since the last call; nothing is waited for."""
        passed = [timed for timed in self._timed if timed.ended.has_passed()]
        self._timed = [timed for timed in self._timed if timed not in passed]
        return Moved(
            num_blocks=sum(timed.num_blocks for timed in passed),
            seconds=sum(timed.ended.seconds_since(timed.began) for timed in passed),
        )

    def _portions(self, pairs: IntArray) -> Iterator[IntArray]:
        for start in range(0, len(pairs), self._most_at_once):
            yield pairs[start : start + self._most_at_once]

    def _out(self, pairs: IntArray) -> None:
        """Copy blocks of the cache to places of the pool; the cache may change at once."""
        self._make_room(len(pairs))
        sources, places = self._indices(pairs[:, 0]), pairs[:, 1].tolist()
        gathered = [plane.room(len(pairs)) for plane in self._planes]
        for plane, blocks in zip(self._planes, gathered, strict=True):
            for index, part in enumerate(plane.parts):
                blocks[:, index] = part.index_select(0, sources)
        with self._device.copying("out"):
            began = self._device.mark()
            for plane, blocks in zip(self._planes, gathered, strict=True):
                for index, place in enumerate(places):
                    plane.place(place).copy_(blocks[index], non_blocking=True)
            ended = self._note(len(pairs), began)
        self._leaving.append(
            _Leaving(num_blocks=len(pairs), places=frozenset(places), gathered=gathered, ended=ended)
        )

    def _make_room(self, count: int) -> None:
        """Let go of gathered blocks that have left; of too many, let the device wait for the oldest."""
        while self._leaving and self._leaving[0].ended.has_passed():
            self._leaving.popleft()
        held = sum(leaving.num_blocks for leaving in self._leaving)
        while self._leaving and held + count > self._most_at_once:
            # Their memory is given to later work of this stream only, which now comes after the copy.
            oldest = self._leaving.popleft()
            self._device.follow(oldest.ended)
            held -= oldest.num_blocks

    def _in(self, pairs: IntArray) -> None:
        """Copy places of the pool to blocks of the cache, before anything that comes later."""
        places, targets = pairs[:, 0].tolist(), self._indices(pairs[:, 1])
        gathered = [plane.room(len(pairs)) for plane in self._planes]
        with self._device.copying("in"):
            for leaving in self._leaving:
                if not leaving.places.isdisjoint(places):
                    self._device.follow(leaving.ended)
            began = self._device.mark()
            for plane, blocks in zip(self._planes, gathered, strict=True):
                for index, place in enumerate(places):
                    blocks[index].copy_(plane.place(place), non_blocking=True)
            arrived = self._note(len(pairs), began)
        self._device.follow(arrived)
        for plane, blocks in zip(self._planes, gathered, strict=True):
            for index, part in enumerate(plane.parts):
                part.index_copy_(0, targets, blocks[:, index])

    def _within(self, sources: IntArray, targets: IntArray) -> None:
        """Copy blocks of the cache to others of it, all reads before all writes of one."""
        count = len(sources)
        there = send_together(self._device, [sources, targets])
        pairs = torch.stack([there[0][:count], there[1][:count]], dim=1).long()
        for plane in self._planes:
            for part in plane.parts:
                copy_blocks(part, part, pairs)

    def _note(self, num_blocks: int, began: Mark) -> Mark:
        """Mark the end of copies, to be timed once it has passed."""
        ended = self._device.mark()
        self._timed.append(_Timed(num_blocks=num_blocks, began=began, ended=ended))
        return ended

    def _indices(self, blocks: IntArray) -> torch.Tensor:
        return send_together(self._device, [blocks])[0].long()
