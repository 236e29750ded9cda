"""How many bytes of a GPU may go to the KV cache. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill_engine.runner.kv_memory import CacheDemand

GRAPH_BYTES = 512 * 1024**2
"""Kept for captured graphs, whose work space is known only once they are captured."""
_MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """What the driver and torch's allocator say after loading and one step of the full token budget.

    `free_bytes`: of the device, to anyone; `reserved_bytes`: held by this process's allocator now;
    `peak_bytes`: the most that this process's tensors took at once.
    """

    total_bytes: int
    free_bytes: int
    reserved_bytes: int
    peak_bytes: int

    @property
    def foreign_bytes(self) -> int:
        """Return what the allocator does not hold: the driver's context, libraries, other processes."""
        return max(0, self.total_bytes - self.free_bytes - self.reserved_bytes)


@dataclass(frozen=True, kw_only=True)
class DeviceBudget:
    """How the cache of a GPU is sized: a share of all its memory, less what else needs memory."""

    memory: DeviceMemory
    usable_share: float
    graph_bytes: int = GRAPH_BYTES
    later_bytes: int = 0
    """What is allocated after the cache: tables of rows, logits of graphs, blocks on their way."""

    @property
    def num_bytes(self) -> int:
        """Return the bytes that may go to the cache."""
        held = self.memory.peak_bytes + self.memory.foreign_bytes + self.graph_bytes + self.later_bytes
        return int(self.usable_share * self.memory.total_bytes) - held

    def refusal(self, demand: CacheDemand, num_bytes: int) -> str:
        """Say with numbers why not even one block fits."""
        memory = self.memory
        return (
            f"no memory is left for the KV cache: {self.usable_share:.0%} of the GPU's "
            f"{memory.total_bytes // _MIB} MiB, less {memory.peak_bytes // _MIB} MiB for model and step, "
            f"{memory.foreign_bytes // _MIB} MiB that others hold, {self.graph_bytes // _MIB} MiB for graphs "
            f"and {self.later_bytes // _MIB} MiB for rows and swap, leaves {num_bytes // _MIB} MiB; a block "
            f"takes {demand.bytes_per_block / _MIB:.1f} MiB. "
            "Raise --gpu-memory-utilization, or lower --max-num-batched-tokens"
        )
