"""How paged attention is laid out on a GPU: tiles of query rows, and parts of a long context. Pure.

One kernel serves prefill and decode. A tile is some tokens of one sequence; the query heads that share a
key/value head are packed into its rows, so that a matrix product has at least 16 of them even for one token.
Where there are too few tiles to fill the device, each context is cut into parts (split-KV) whose results a
second kernel merges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill_kernels.sizes import next_power_of_two

Ints = npt.NDArray[np.int32]

MIN_ROWS = 16
MAX_ROWS = 128
FLOAT32_ROWS = 32
"""Rows at most for float32, which no matrix unit multiplies as it is."""
KEYS = 64
NARROW_KEYS = 32
"""Keys of an iteration where a tile's rows fill the registers: before sm_90, from WIDE_TILE numbers on."""
WIDE_TILE = 128 * 128
WARPGROUP_CAPABILITY = 90
MIN_KEYS_PER_PART = 256
MAX_PARTS = 32


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """What of a model decides the layout."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Return the number of query heads that share a key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def padded_group(self) -> int:
        """Return the group rounded up to a power of two, so that a tile's rows divide evenly into tokens."""
        return next_power_of_two(self.group)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What of a device decides the layout; capability: 80 for sm_80, and so on."""

    num_multiprocessors: int
    capability: int = WARPGROUP_CAPABILITY


@dataclass(frozen=True, kw_only=True)
class AttentionLaunch:
    """One launch.

    tile_sequences, tile_starts: `[num_tiles]` int32, the sequence of each tile and its first token within the
    sequence's new tokens. tokens_per_tile x group padded = rows: rows of a tile; keys: of one iteration;
    num_parts: parts of each context; num_warps, num_stages: of the kernel.
    """

    tile_sequences: Ints
    tile_starts: Ints
    tokens_per_tile: int
    rows: int
    keys: int
    num_parts: int
    num_warps: int
    num_stages: int


def plan_attention(
    query_lens: Sequence[int] | Ints,
    seq_lens: Sequence[int] | Ints,
    heads: HeadShape,
    gpu: Gpu,
    *,
    is_float32: bool = False,
) -> AttentionLaunch:
    """Lay out one step.

    query_lens: `[num_seqs]`, new tokens of each sequence (0: none); seq_lens: `[num_seqs]`, those included;
    is_float32: the dtype of queries, which takes smaller tiles.
    Raises ValueError where a sequence has more new tokens than tokens.
    """
    new, lengths = np.asarray(query_lens, dtype=np.int32), np.asarray(seq_lens, dtype=np.int32)
    if (new > lengths).any():
        raise ValueError("a sequence has more new tokens than tokens")
    longest = int(new.max(initial=0))
    rows = _rows(longest, heads.padded_group, FLOAT32_ROWS if is_float32 else MAX_ROWS)
    tokens = max(1, rows // heads.padded_group)
    tiles = -(-new // tokens)
    num_tiles = int(tiles.sum())
    before = np.repeat(np.cumsum(tiles) - tiles, tiles)
    is_wide = is_float32 or (rows * heads.head_dim >= WIDE_TILE and gpu.capability < WARPGROUP_CAPABILITY)
    return AttentionLaunch(
        tile_sequences=np.repeat(np.arange(len(new), dtype=np.int32), tiles),
        tile_starts=((np.arange(num_tiles) - before) * tokens).astype(np.int32),
        tokens_per_tile=tokens,
        rows=rows,
        keys=NARROW_KEYS if is_wide else KEYS,
        num_parts=plan_parts(
            num_tiles * heads.num_kv_heads, int(lengths.max(initial=0)), gpu.num_multiprocessors
        ),
        num_warps=4 if rows <= 64 else 8,
        num_stages=3 if heads.head_dim <= 128 and not is_float32 else 2,
    )


def plan_parts(num_programs: int, longest_context: int, num_multiprocessors: int) -> int:
    """Cut contexts into as many parts as fill the device twice, none shorter than MIN_KEYS_PER_PART.

    A power of two, so that few variants of the kernel are compiled.
    """
    if num_programs == 0:
        return 1
    wanted = -(-2 * num_multiprocessors // num_programs)
    possible = max(1, longest_context // MIN_KEYS_PER_PART)
    return 1 << (max(1, min(wanted, possible, MAX_PARTS)).bit_length() - 1)


def _rows(longest: int, padded_group: int, most: int) -> int:
    """Choose the rows of a tile: all of a short chunk, at most so many, at least MIN_ROWS."""
    wanted = min(most, padded_group * max(1, longest))
    return max(MIN_ROWS, padded_group, next_power_of_two(wanted))
