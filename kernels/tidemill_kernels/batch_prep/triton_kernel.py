"""Building a step's flat tensors on the device: nothing but row numbers and counts crosses to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_BLOCK = 256
_ALIGNED = 16


@dataclass(frozen=True, kw_only=True)
class FlatBatch:
    """A step's tokens; input_ids, positions, slot_mapping: `[num_tokens]` int64."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor


@triton.jit
def prepare_batch_kernel(
    rows_ptr,
    start_pos_ptr,
    query_start_ptr,
    token_pool_ptr,
    block_table_ptr,
    input_ids_ptr,
    positions_ptr,
    slots_ptr,
    stride_pool_row,
    stride_table_row,
    block_size,
    BLOCK: tl.constexpr,
):
    """Write BLOCK tokens of one row per program."""
    index = tl.program_id(0)
    row = tl.load(rows_ptr + index).to(tl.int64)
    first = tl.load(query_start_ptr + index)
    count = tl.load(query_start_ptr + index + 1) - first
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    positions = tl.load(start_pos_ptr + index).to(tl.int64) + offsets
    ids = tl.load(token_pool_ptr + row * stride_pool_row + positions, mask=inside, other=0).to(tl.int64)
    place = block_table_ptr + row * stride_table_row + positions // block_size
    blocks = tl.load(place, mask=inside, other=0).to(tl.int64)
    tl.store(input_ids_ptr + first + offsets, ids, mask=inside)
    tl.store(positions_ptr + first + offsets, positions, mask=inside)
    tl.store(slots_ptr + first + offsets, blocks * block_size + positions % block_size, mask=inside)


def prepare_batch(
    rows: torch.Tensor,
    start_pos: torch.Tensor,
    query_start_loc: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    block_size: int,
    sizes: tuple[int, int],
) -> FlatBatch:
    """Build the flat tensors of one step.

    rows, start_pos: `[num_seqs]` int32; query_start_loc: `[num_seqs + 1]` int32; pools: the tokens of every
    row `[max_rows, max_model_len]` int32 and their blocks `[max_rows, max_blocks]` int32; sizes: num_tokens
    and the largest number of tokens of one row, both known to the host.
    """
    num_tokens, most = sizes
    token_pool, block_table = pools
    # Rows of a width that keeps all three aligned: kernels are compiled again for pointers that are not.
    width = triton.cdiv(num_tokens, _ALIGNED) * _ALIGNED
    empty = torch.empty((3, width), dtype=torch.int64, device=token_pool.device)[:, :num_tokens]
    if rows.shape[0] and most:
        prepare_batch_kernel[(rows.shape[0], triton.cdiv(most, _BLOCK))](
            rows,
            start_pos,
            query_start_loc,
            token_pool,
            block_table,
            empty[0],
            empty[1],
            empty[2],
            token_pool.stride(0),
            block_table.stride(0),
            block_size,
            BLOCK=_BLOCK,
            num_warps=2,
        )
    return FlatBatch(input_ids=empty[0], positions=empty[1], slot_mapping=empty[2])
