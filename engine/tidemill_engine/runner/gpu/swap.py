"""Blocks between the device's cache and a pool in the host's memory, and within the cache.

A block of the pool holds all layers, so that it moves in one piece. Out: blocks are gathered on the device,
then copied to the host beside the step; in: the other way round, and the step waits. Knows no requests.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Copies on their way: `pieces` must be kept until `ended` has passed."""

    pieces: list[torch.Tensor]
    began: Mark
    ended: Mark


class BlockMover:
    """Carries out a step's copies."""

    def __init__(self, device: Device, cache: DeviceCache, num_swap_blocks: int) -> None:
        self._device = device
        self._parts = cache.parts
        shape, dtype = (len(self._parts), *self._parts[0].shape[1:]), self._parts[0].dtype
        self._per_piece = max(1, POOL_PIECE_BYTES // (math.prod(shape) * dtype.itemsize))
        self._pool = [
            device.host_tensor((min(self._per_piece, num_swap_blocks - done), *shape), dtype)
            for done in range(0, num_swap_blocks, self._per_piece)
        ]

    def carry_out(self, output: SchedulerOutput) -> Moved | None:
        """Do a step's copies in their order; None if it has none."""
        if not (len(output.swap_out) or len(output.swap_in) or len(output.block_copies)):
            return None
        began = self._device.mark()
        pieces: list[torch.Tensor] = []
        if len(output.swap_out):
            pieces.append(self._out(output.swap_out))
        if len(output.swap_in):
            pieces.append(self._in(output.swap_in))
        copy_in_order(output.block_copies, self._within)
        with self._device.copying(joins=False):
            return Moved(pieces=pieces, began=began, ended=self._device.mark())

    def _out(self, pairs: IntArray) -> torch.Tensor:
        """Copy blocks of the cache to places of the pool, whole; the cache may change at once."""
        gathered = self._piece(len(pairs))
        sources = self._indices(pairs[:, 0])
        for index, part in enumerate(self._parts):
            gathered[:, index] = part.index_select(0, sources)
        with self._device.copying(joins=False):
            for index, place in enumerate(pairs[:, 1].tolist()):
                self._place(place).copy_(gathered[index], non_blocking=True)
        return gathered

    def _in(self, pairs: IntArray) -> torch.Tensor:
        """Copy places of the pool to blocks of the cache, before anything that comes later."""
        gathered = self._piece(len(pairs))
        with self._device.copying(joins=True):
            for index, place in enumerate(pairs[:, 0].tolist()):
                gathered[index].copy_(self._place(place), non_blocking=True)
        targets = self._indices(pairs[:, 1])
        for index, part in enumerate(self._parts):
            part.index_copy_(0, targets, gathered[:, index])
        return gathered

    def _within(self, sources: IntArray, targets: IntArray) -> None:
        """Copy blocks of the cache to others of it, all reads before all writes of one."""
        count = len(sources)
        there = send_together(self._device, [sources, targets])
        pairs = torch.stack([there[0][:count], there[1][:count]], dim=1).long()
        for part in self._parts:
            copy_blocks(part, part, pairs)

    def _place(self, place: int) -> torch.Tensor:
        """Return a place of the pool: `[num_parts, ...]`."""
        found: torch.Tensor = self._pool[place // self._per_piece][place % self._per_piece]
        return found

    def _piece(self, count: int) -> torch.Tensor:
        """Return room on the device for so many blocks, as the pool holds them: `[count, num_parts, ...]`."""
        part = self._parts[0]
        return torch.empty((count, len(self._parts), *part.shape[1:]), dtype=part.dtype, device=part.device)

    def _indices(self, blocks: IntArray) -> torch.Tensor:
        return send_together(self._device, [blocks])[0].long()
