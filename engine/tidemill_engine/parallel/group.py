"""What ranks exchange while they compute one step: sums, columns of logits, chosen tokens.

The same code over gloo on CPUs and NCCL on GPUs. Knows tensors, not models or steps.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

from tidemill_engine.models.sharding import WHOLE, Shard
from tidemill_engine.runner.memory import Numbers, OwnNumbers

if TYPE_CHECKING:
    from tidemill_engine.parallel.membership import Membership

_LOOPBACK = "127.0.0.1"
_START_TIMEOUT = timedelta(minutes=10)


class RankGroup(Numbers, Protocol):
    """What a part of a model needs of the others. All ranks make the same calls in the same order."""

    @property
    def shard(self) -> Shard:
        """Return which part this is."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x; x may be changed."""

    def join_columns(self, x: torch.Tensor) -> torch.Tensor:
        """Return all ranks' x `[n, width]` beside one another: `[n, size * width]`."""

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        """Return rank 0's x; x may be changed."""


class Alone(OwnNumbers):
    """The group of a model that is not divided."""

    shard = WHOLE

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x

    def join_columns(self, x: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x


class TorchGroup:
    """Ranks joined by torch.distributed."""

    def __init__(self, shard: Shard, device: torch.device) -> None:
        self._shard = shard
        self._device = device

    @property
    def shard(self) -> Shard:
        """Return which part this is."""
        return self._shard

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x."""
        dist.all_reduce(x)
        return x

    def join_columns(self, x: torch.Tensor) -> torch.Tensor:
        """Return all ranks' x beside one another."""
        count, width = x.shape
        parts = x.new_empty((self._shard.size, count, width))
        dist.all_gather_into_tensor(parts.view(-1, width), x.contiguous())
        return parts.transpose(0, 1).reshape(count, -1)

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        """Return rank 0's x."""
        dist.broadcast(x, src=0)
        return x

    def total(self, number: int) -> int:
        """Return the sum of all ranks' numbers."""
        return self._reduced(number, dist.ReduceOp.SUM)

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers."""
        return self._reduced(number, dist.ReduceOp.MIN)

    def _reduced(self, number: int, operation: dist.ReduceOp.RedOpType) -> int:
        value = torch.tensor([number], dtype=torch.int64, device=self._device)
        dist.all_reduce(value, op=operation)
        return int(value.item())


def join_group(membership: Membership | None, device: torch.device) -> RankGroup:
    """Meet the other ranks, who must call this too; without a membership there are none."""
    if membership is None:
        return Alone()
    shard = membership.shard
    is_gpu = device.type == "cuda"
    if not is_gpu:
        # Ranks are processes of one machine; gloo would look up the host's name for an address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    listener_fd = membership.listener_fd
    store = dist.TCPStore(  # type: ignore[attr-defined]
        _LOOPBACK,
        membership.port,
        shard.size,
        is_master=shard.rank == 0,
        timeout=_START_TIMEOUT,
        # The store closes what it is given; the listener stays its owner's.
        master_listen_fd=None if listener_fd is None else os.dup(listener_fd),
    )
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        device_id=device if is_gpu else None,
    )
    return TorchGroup(shard, device)
