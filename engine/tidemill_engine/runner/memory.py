"""How many KV blocks a loaded model gets on this machine, and how memory is kept once it was touched."""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Protocol

from tidemill_engine.runner import machine
from tidemill_engine.runner.kv_memory import Budget, CacheDemand, CacheSize, MemoryFacts, size_cache

if TYPE_CHECKING:
    from tidemill_engine.config import CoreConfig, SchedulerConfig
    from tidemill_engine.models.config import LlamaConfig

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Tell malloc to keep freed memory: steps reuse the same sizes, and page faults are dear."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)


class Numbers(Protocol):
    """How processes that hold one model together agree on numbers."""

    def total(self, number: int) -> int:
        """Return the sum of all their numbers."""

    def least(self, number: int) -> int:
        """Return the least of them."""


class OwnNumbers:
    """What a process agrees on with itself."""

    def total(self, number: int) -> int:
        """Return the number."""
        return number

    def least(self, number: int) -> int:
        """Return the number."""
        return number


def bytes_of_wider_steps(scheduler: SchedulerConfig, model: LlamaConfig, max_model_len: int) -> int:
    """Return what a step of the whole budget takes, at most, beyond one of the longest chunk.

    Such a step is not tried at the start: with a large model it takes minutes on a CPU. Counted are a layer's
    numbers for a token, in four bytes each: three times the hidden ones, twice queries, keys and values, and
    gate, up and their product. The C++ kernels hold about two thirds of that. A padded batch, of however few
    rows, may fill the budget with one prompt and its padding; without chunks the longest prompt is one step.
    """
    chunk = min(scheduler.chunk_tokens, max_model_len)
    num_tokens = scheduler.step_tokens(max_model_len)
    if scheduler.kind == "continuous":
        most_of_a_row = chunk if scheduler.is_chunked_prefill else max_model_len
        num_tokens = min(num_tokens, scheduler.max_num_seqs * most_of_a_row)
    num_chunks = -(-num_tokens // chunk)
    qkv = model.query_size + 2 * model.kv_size
    per_token = 4 * (3 * model.hidden_size + 2 * qkv + 3 * model.intermediate_size)
    return (num_chunks - 1) * chunk * per_token


def machine_budget(config: CoreConfig, ranks: Numbers, later_bytes: int = 0) -> MemoryFacts:
    """Return what this machine leaves for caches once the model is loaded and has computed a step.

    Ranks share the machine's memory: the budget is that of all their caches together. `later_bytes` is what
    this process is going to take beyond what it holds.
    """
    return MemoryFacts(
        limit_bytes=machine.memory_limit_bytes(),
        available_bytes=ranks.least(machine.available_memory_bytes()),
        used_bytes=ranks.total(machine.used_memory_bytes() + later_bytes),
        usable_share=config.cache.memory_utilization,
    )


def choose_cache_size(
    config: CoreConfig, budget: Budget, bytes_per_block: int, max_model_len: int
) -> CacheSize:
    """Size the cache by a budget, or by what the user said."""
    demand = CacheDemand(
        bytes_per_block=bytes_per_block,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=max_model_len,
    )
    size = size_cache(
        budget, demand, num_blocks=config.cache.num_blocks, memory_bytes=config.cache.memory_bytes
    )
    if size.max_model_len < max_model_len:
        logger.warning(
            "max_model_len falls from %d to %d: the KV cache of %d blocks holds no more (%s)",
            max_model_len,
            size.max_model_len,
            size.num_blocks,
            budget,
        )
    return size


def choose_max_model_len(wanted: int | None, of_model: int) -> int:
    """Return the longest sequence: what was asked for, but no more than the model allows."""
    if wanted is not None and wanted > of_model:
        logger.warning("max_model_len %d is over the model's own %d", wanted, of_model)
    return min(wanted or of_model, of_model)
