"""Which part of a model each rank holds when several compute it together (as in Megatron, arXiv 1909.08053).

Query heads with their key/value heads, columns of the MLP, and rows of the output matrix are divided; norms
and the embedding are whole everywhere. With more ranks than key/value heads, ranks share copies of one. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill_engine.errors import ModelLoadError

if TYPE_CHECKING:
    from tidemill_engine.models.config import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of `size` equal parts of a model."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size}")

    def of(self, config: LlamaConfig) -> LlamaConfig:
        """Return the shapes of this part; raise `ModelLoadError` where a model does not divide so."""
        if not _divides(config, self.size):
            wanted = ", ".join(str(size) for size in range(1, config.num_heads + 1) if _divides(config, size))
            raise ModelLoadError(
                f"tensor_parallel_size {self.size} does not divide the {config.num_heads} query heads "
                f"over {config.num_kv_heads} key/value heads and {config.intermediate_size} MLP columns; "
                f"sizes that do: {wanted}",
                reason="InvalidConfig",
            )
        return replace(
            config,
            num_heads=config.num_heads // self.size,
            num_kv_heads=max(1, config.num_kv_heads // self.size),
            intermediate_size=config.intermediate_size // self.size,
        )

    def query_heads(self, config: LlamaConfig) -> slice:
        """Return this part's query heads of the whole model."""
        return self._part(config.num_heads)

    def kv_heads(self, config: LlamaConfig) -> slice:
        """Return this part's key/value heads, one that others have too where there are too few."""
        if config.num_kv_heads >= self.size:
            return self._part(config.num_kv_heads)
        head = self.rank * config.num_kv_heads // self.size
        return slice(head, head + 1)

    def mlp_columns(self, config: LlamaConfig) -> slice:
        """Return this part's columns of the MLP."""
        return self._part(config.intermediate_size)

    def vocabulary(self, vocab_size: int) -> slice:
        """Return this part's tokens; the last part may have fewer than `vocabulary_width` of them."""
        width = self.vocabulary_width(vocab_size)
        return slice(min(self.rank * width, vocab_size), min((self.rank + 1) * width, vocab_size))

    def vocabulary_width(self, vocab_size: int) -> int:
        """Return how many logits each rank computes; those past the vocabulary are cut off."""
        return -(-vocab_size // self.size)

    def _part(self, count: int) -> slice:
        width = count // self.size
        return slice(self.rank * width, (self.rank + 1) * width)


WHOLE = Shard()


def _divides(config: LlamaConfig, size: int) -> bool:
    """Say whether so many equal parts can be made."""
    shares_kv = config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0
    return config.num_heads % size == 0 and shares_kv and config.intermediate_size % size == 0
