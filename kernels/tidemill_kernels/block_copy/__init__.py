"""Copies of whole blocks inside a cache, or between two: forks, compaction, swap."""

from __future__ import annotations

import torch

from tidemill_kernels.block_copy.reference import copy_blocks_reference

__all__ = ["copy_blocks", "copy_blocks_reference"]


def copy_blocks(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy blocks in the order given, all reads of one call before its writes.

    source, target: `[num_blocks, ...]` of one dtype and block shape, perhaps the same tensor; pairs: `[n, 2]`
    int64 (from, to). No block may be written twice in a call, nor one that is read be written: the caller
    orders such chains over several calls.
    """
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
        raise ValueError(f"blocks {tuple(source.shape[1:])} do not fit {tuple(target.shape[1:])}")
    if source.is_cuda and target.is_cuda:
        from tidemill_kernels.block_copy import triton_kernel  # noqa: PLC0415 - triton only where a GPU is

        triton_kernel.copy_blocks(source, target, pairs)
    else:
        copy_blocks_reference(source, target, pairs)
