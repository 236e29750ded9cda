"""How many KV blocks a machine's memory allows. Pure arithmetic: bytes in, a number or a refusal out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill_engine.errors import ModelLoadError

DEFAULT_USABLE_SHARE = 0.90
API_PROCESS_BYTES = 512 * 1024**2
SHARE_OF_AVAILABLE_WITHOUT_LIMIT = 0.25
MOST_BYTES_WITHOUT_LIMIT = 4 * 1024**3
_MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """What the machine says; `limit_bytes` is None where no cgroup limits this process.

    `used_bytes` is this process after loading and one step, and what a step of the full token budget adds.
    """

    limit_bytes: int | None
    available_bytes: int
    used_bytes: int
    usable_share: float = DEFAULT_USABLE_SHARE

    @property
    def num_bytes(self) -> int:
        """Return the bytes that may go to the cache."""
        if self.limit_bytes is None:
            usable = int(self.usable_share * self.available_bytes) - API_PROCESS_BYTES
            share = int(SHARE_OF_AVAILABLE_WITHOUT_LIMIT * self.available_bytes)
            return min(usable, share, MOST_BYTES_WITHOUT_LIMIT)
        return int(self.usable_share * self.limit_bytes) - self.used_bytes - API_PROCESS_BYTES

    def refusal(self, demand: CacheDemand, num_bytes: int) -> str:
        """Say with numbers why not even one block fits."""
        limit = self.available_bytes if self.limit_bytes is None else self.limit_bytes
        return (
            f"no memory is left for the KV cache: of {limit // _MIB} MiB, {self.used_bytes // _MIB} MiB hold "
            f"the model and a step, {API_PROCESS_BYTES // _MIB} MiB are kept for the API process, which "
            f"leaves {num_bytes // _MIB} MiB; one block takes {demand.bytes_per_block / _MIB:.1f} MiB. Raise "
            f"the memory limit or set --kv-cache-memory-bytes"
        )


class Budget(Protocol):
    """Memory that a cache may take, and words for when it is too little."""

    @property
    def num_bytes(self) -> int:
        """Return the bytes that may go to the cache."""

    def refusal(self, demand: CacheDemand, num_bytes: int) -> str:
        """Say with numbers why not even one block fits into so many bytes."""


@dataclass(frozen=True, kw_only=True)
class CacheDemand:
    """What is asked for: the size of a block, and the most that could ever be used."""

    bytes_per_block: int
    block_size: int
    max_num_seqs: int
    max_model_len: int

    @property
    def most_useful_blocks(self) -> int:
        """Return the blocks that all sequences at full length would fill."""
        return self.max_num_seqs * -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """How many blocks there will be, and how long a sequence may be with them."""

    num_blocks: int
    max_model_len: int


def size_cache(
    budget: Budget,
    demand: CacheDemand,
    *,
    num_blocks: int | None = None,
    memory_bytes: int | None = None,
) -> CacheSize:
    """Choose the number of blocks: as told, else by the bytes told, else by the budget."""
    if num_blocks is None:
        num_bytes = budget.num_bytes if memory_bytes is None else memory_bytes
        num_blocks = min(num_bytes // demand.bytes_per_block, demand.most_useful_blocks)
        if num_blocks < 1:
            raise ModelLoadError(budget.refusal(demand, num_bytes), reason="OutOfMemory")
    capacity = num_blocks * demand.block_size
    return CacheSize(num_blocks=num_blocks, max_model_len=min(demand.max_model_len, capacity))
