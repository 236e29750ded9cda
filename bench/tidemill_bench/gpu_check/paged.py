"""Paged sequences with random contents, and attention over them by plain products, in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from tidemill_kernels.paged_attention.batch import AttentionOptions, PagedBatch
from tidemill_kernels.paged_attention.launch import Gpu, HeadShape, plan_attention
from tidemill_kernels.paged_attention.triton_kernel import paged_attention
from tidemill_kernels.rope_kv_write import NARROW_MOST

BLOCK_SIZE = 16
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class PagedCase:
    """Sequences of (context, new tokens) each, with queries and caches; shapes as the kernel wants them."""

    sequences: Sequence[tuple[int, int]]
    heads: HeadShape
    query: torch.Tensor
    caches: tuple[torch.Tensor, torch.Tensor]
    table: torch.Tensor
    starts: torch.Tensor
    seq_lens: torch.Tensor

    @staticmethod
    def make(
        sequences: Sequence[tuple[int, int]], heads: HeadShape, dtype: torch.dtype, device: torch.device
    ) -> PagedCase:
        """Fill a case; blocks lie in no order."""
        generator = torch.Generator(device=device).manual_seed(0)
        new = torch.tensor([count for _, count in sequences])
        lengths = new + torch.tensor([context for context, _ in sequences])
        max_blocks = -(-int(lengths.max()) // BLOCK_SIZE)
        num_blocks = max_blocks * len(sequences)
        table = torch.randperm(num_blocks, generator=generator, device=device).view(-1, max_blocks)
        shape = (num_blocks, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator, device=device, dtype=dtype)

        return PagedCase(
            sequences=sequences,
            heads=heads,
            query=normal(int(new.sum()), heads.num_heads, heads.head_dim),
            caches=(normal(*shape), normal(*shape)),
            table=table.int(),
            starts=torch.nn.functional.pad(new.cumsum(0), (1, 0)).int().to(device),
            seq_lens=lengths.int().to(device),
        )

    def attending(
        self,
        gpu: Gpu,
        options: AttentionOptions,
        caches: tuple[torch.Tensor, torch.Tensor] | None = None,
        scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Callable[[], torch.Tensor]:
        """Lay attention by our kernel out, and return what computes it without waiting for the host."""
        device = self.query.device
        launch = plan_attention(
            [new for _, new in self.sequences],
            [context + new for context, new in self.sequences],
            self.heads,
            gpu,
            is_float32=self.query.dtype == torch.float32,
        )
        batch = PagedBatch(
            block_table=self.table,
            seq_lens=self.seq_lens,
            query_start_loc=self.starts,
            tile_sequences=torch.from_numpy(launch.tile_sequences).to(device),
            tile_starts=torch.from_numpy(launch.tile_starts).to(device),
        )
        pair = caches or self.caches
        return partial(paged_attention, self.query, pair, batch, launch, options, scales=scales)

    def narrowed(self, kind: torch.dtype) -> tuple[Pair, Pair]:
        """Return keys and values in 8 bits, and their scales; the case's own become what those stand for."""
        scales = [cache.float().abs().amax(-1) / NARROW_MOST[kind] for cache in self.caches]
        scaled = [cache.float() / scale[..., None] for cache, scale in zip(self.caches, scales, strict=True)]
        narrow = [(part.round() if kind == torch.int8 else part).to(kind) for part in scaled]
        for cache, part, scale in zip(self.caches, narrow, scales, strict=True):
            cache.copy_(part.float() * scale[..., None])
        return (narrow[0], narrow[1]), (scales[0], scales[1])

    def gathered(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return one sequence's queries `[new, heads, dim]` and keys and values `[length, kv heads, dim]`."""
        length, blocks = int(self.seq_lens[index]), self.table[index].long()
        keys, values = (cache[blocks].flatten(0, 1)[:length] for cache in self.caches)
        return self.query[int(self.starts[index]) : int(self.starts[index + 1])], keys, values

    def dense(self, options: AttentionOptions) -> torch.Tensor:
        """Attend by plain products, in float32, rounded once."""
        parts = []
        for index in range(len(self.sequences)):
            query, keys, values = (part.float() for part in self.gathered(index))
            keys, values = (part.repeat_interleave(self.heads.group, dim=1) for part in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", query, keys) * options.scale
            if options.soft_cap:
                scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
            length, new = keys.shape[0], query.shape[0]
            own = torch.arange(length - new, length, device=query.device)[:, None]
            places = torch.arange(length, device=query.device)
            seen = places <= own
            if options.window:
                seen &= places > own - options.window
            weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(parts).to(self.query.dtype)
