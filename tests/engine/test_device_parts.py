"""The parts of the runner for GPUs that decide something: sizes, memory, places, backends."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import make_request, make_scheduler, make_sim_runner
from late_device import LateDevice, ReleasedTooEarlyError
from tidemill_bench.gpu_check import random_model
from tidemill_engine.config import Quantization
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.device_llama import Caches, CacheShape, DeviceCache
from tidemill_engine.runner.gpu import swap
from tidemill_engine.runner.gpu.attention import AttentionBackend, Sequences
from tidemill_engine.runner.gpu.attention_libraries import FlashAttention, FlashInfer
from tidemill_engine.runner.gpu.compute import StepShape
from tidemill_engine.runner.gpu.device import HostDevice
from tidemill_engine.runner.gpu.graphs import graph_sizes, size_for
from tidemill_engine.runner.gpu.linears import linear_maker
from tidemill_engine.runner.gpu.memory import DeviceBudget, DeviceMemory
from tidemill_engine.runner.gpu.rows import DeviceRows, append_places
from tidemill_engine.runner.gpu.staging import send_together
from tidemill_engine.runner.kv_memory import CacheDemand, size_cache
from tidemill_engine.step import SchedulerOutput, int_array
from tidemill_kernels.paged_attention import paged_attention_reference
from tidemill_kernels.paged_attention.launch import HeadShape
from tidemill_kernels.weight_quant.quantize import quantize_fp8, quantize_int8

GIB = 1024**3
HEADS = HeadShape(num_heads=4, num_kv_heads=2, head_dim=16)


@given(st.integers(1, 2000))
def test_every_batch_up_to_the_largest_has_a_size_that_is_not_much_larger(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert sizes[-1] == min(max_num_seqs, 1024)
    for num_rows in range(1, sizes[-1] + 1):
        size = size_for(num_rows, sizes)
        assert size is not None
        assert num_rows <= size < num_rows + max(16, num_rows // 8)


@pytest.mark.parametrize("num_rows", [0, 9])
def test_a_batch_that_no_size_fits_has_none(num_rows: int) -> None:
    assert size_for(num_rows, (1, 2, 4, 8)) is None
    assert size_for(num_rows, ()) is None


def make_memory(total: int = 80, free: int = 60, reserved: int = 18, peak: int = 20) -> DeviceMemory:
    return DeviceMemory(
        total_bytes=total * GIB, free_bytes=free * GIB, reserved_bytes=reserved * GIB, peak_bytes=peak * GIB
    )


def test_the_cache_gets_a_share_of_the_gpu_less_model_step_and_what_others_hold() -> None:
    budget = DeviceBudget(memory=make_memory(), usable_share=0.9, graph_bytes=GIB)
    assert budget.num_bytes == 72 * GIB - 20 * GIB - 2 * GIB - GIB
    demand = CacheDemand(bytes_per_block=GIB, block_size=16, max_num_seqs=256, max_model_len=4096)
    assert size_cache(budget, demand).num_blocks == 49


def test_a_gpu_that_is_too_small_is_refused_with_numbers() -> None:
    budget = DeviceBudget(memory=make_memory(total=24, free=2), usable_share=0.9)
    demand = CacheDemand(bytes_per_block=2 << 20, block_size=16, max_num_seqs=8, max_model_len=4096)
    with pytest.raises(
        ModelLoadError, match=r"90% of the GPU's 24576 MiB, less 20480 MiB.*4096 MiB that others"
    ):
        size_cache(budget, demand)


def test_arrays_arrive_aligned_and_as_they_were() -> None:
    arrays: list[npt.NDArray[Any]] = [
        int_array([1, 2, 3]),
        np.array([0.5, -1.5], dtype=np.float32),
        np.array([2**40], dtype=np.int64),
    ]
    sent = send_together(HostDevice(), [*arrays, int_array()])
    assert sent[0].tolist() == [1, 2, 3]
    assert sent[1].view(torch.float32).tolist() == [0.5, -1.5]
    assert sent[2].view(torch.int64).tolist() == [2**40]
    assert len(sent[3]) == 0
    assert {(tensor.data_ptr() - sent[0].data_ptr()) % 128 for tensor in sent[:3]} == {0}


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_narrow_weights_multiply_as_the_numbers_that_they_stand_for(
    kind: Quantization, *, has_bias: bool
) -> None:
    weight, x = torch.randn(40, 24), torch.randn(3, 24)
    weight[5] = 0.0
    bias = torch.randn(40) if has_bias else None
    held = {"int8": quantize_int8, "fp8": quantize_fp8}[kind](weight)
    stands_for = held.weight.float() * held.scale[:, None]
    # Half a step: of int8 the scale's, of three bits behind the point a number's own.
    step = held.scale[:, None] / 2 if kind == "int8" else weight.abs() / 16 + held.scale[:, None] / 512
    assert ((stands_for - weight).abs() <= step + 1e-6).all()
    wanted = torch.nn.functional.linear(x, stands_for, bias)
    found = linear_maker(kind, HostDevice.gpu)(weight, bias)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_what_a_gpu_can_not_quantise_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="int8 or fp8 of weights, not int4"):
        linear_maker("int4", HostDevice.gpu)


def test_a_full_rows_next_token_goes_to_the_padding_row() -> None:
    rows = DeviceRows(num_rows=3, max_tokens=8, block_size=4, padding_block=9, device=torch.device("cpu"))
    places = append_places(int_array([2, 0]), int_array([8, 7]), rows)
    assert [place.tolist() for place in places] == [[3, 0], [0, 7]]


def make_cache(dtype: torch.dtype = torch.float32) -> DeviceCache:
    """Return a cache of six blocks of three layers, filled with numbers."""
    shapes = replace(random_model.TINY, num_layers=3)
    shape = CacheShape(config=shapes, block_size=4, dtype=dtype)
    cache = DeviceCache(shape, 6, torch.device("cpu"))
    assert sum(part.nbytes for plane in cache.planes for part in plane) == 6 * shape.block_bytes
    for plane in cache.planes:
        for part in plane:
            part.copy_((torch.rand(part.shape) * 100).to(part.dtype))
    return cache


def test_the_hosts_pool_lies_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    block_bytes = 2 * 3 * 4 * 2 * 8 * 4
    monkeypatch.setattr(swap, "POOL_PIECE_BYTES", 3 * block_bytes - 1)
    pieces: list[tuple[int, ...]] = []

    class Recording(HostDevice):
        def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            pieces.append(shape)
            return super().host_tensor(shape, dtype)

    swap.BlockMover(Recording(), make_cache(), 5)
    assert [shape[0] for shape in pieces] == [2, 2, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_every_place_of_the_pool_holds_its_own_block_scales_and_all(
    dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(dtype)
    block_bytes = sum(part[0].nbytes for plane in cache.planes for part in plane)
    monkeypatch.setattr(swap, "STAGING_BYTES", at_once * block_bytes)
    before = [[part.clone() for part in plane] for plane in cache.planes]
    assert len(before) == (1 if dtype == torch.float32 else 2)
    mover = swap.BlockMover(device := LateDevice(), cache, 5)
    output = some_step()
    mover.carry_out(replace(output, swap_out=int_array([[0, 4], [3, 1], [5, 2]])))
    for plane in cache.planes:
        for part in plane:
            part.zero_()
    mover.carry_out(replace(output, swap_in=int_array([[4, 1], [2, 0]]), block_copies=int_array([[1, 4]])))
    device.finish("out")
    moved = mover.ended()
    assert moved.num_blocks == 5, "out and in, but not within the cache: that says nothing of swapping"
    for plane, old in zip(cache.planes, before, strict=True):
        for part, was in zip(plane, old, strict=True):
            assert torch.equal(part[[0, 1, 4]], was[[5, 0, 0]])


def test_gathered_blocks_are_let_go_once_they_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache()
    block_bytes = sum(part[0].nbytes for part in cache.planes[0])
    monkeypatch.setattr(swap, "STAGING_BYTES", 2 * block_bytes)
    mover = swap.BlockMover(device := LateDevice(), cache, 5)
    output = some_step()
    mover.carry_out(replace(output, swap_out=int_array([[0, 4], [3, 1]])))
    assert device.num_waiting("out") > 0
    mover.carry_out(replace(output, swap_out=int_array([[5, 2]])))
    # The first two made room, so they have left; the third is on its way.
    assert mover.ended().num_blocks == 2
    device.finish("out")
    assert mover.ended().num_blocks == 1


def test_the_device_that_is_late_says_when_memory_goes_before_its_copy() -> None:
    device, place = LateDevice(), torch.zeros(2)
    with device.copying("out"):
        place.copy_(torch.ones(2), non_blocking=True)
    with pytest.raises(ReleasedTooEarlyError):
        device.finish("out")


def some_step() -> SchedulerOutput:
    scheduler = make_scheduler(make_sim_runner().info)
    scheduler.add(make_request("a"), seed=0)
    output = scheduler.schedule(0.0)
    assert output is not None
    return output


def test_a_step_knows_its_decodes_and_where_its_tokens_go() -> None:
    scheduler = make_scheduler(make_sim_runner().info, max_num_batched_tokens=8)
    scheduler.add(make_request("a", prompt_len=3), seed=0)
    scheduler.add(make_request("b", prompt_len=9), seed=0)
    output = scheduler.schedule(0.0)
    assert output is not None
    shape = StepShape.of(output)
    assert (shape.starts.tolist(), shape.seq_lens.tolist(), shape.num_decodes) == ([0, 3, 8], [3, 5], 0)
    assert (shape.sampled_rows.tolist(), shape.lengths.tolist()) == (output.rows[:1].tolist(), [3])


def test_flash_attention_is_asked_for_a_steps_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in computes what flash-attn documents for these arguments; the package itself is not here."""

    def flash_attn_varlen_func(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **given: object
    ) -> torch.Tensor:
        ends_q, ends_k = given["cu_seqlens_q"], given["cu_seqlens_k"]
        assert isinstance(ends_q, torch.Tensor)
        assert isinstance(ends_k, torch.Tensor)
        assert ends_q.dtype == ends_k.dtype == torch.int32
        lens = ends_k.diff().tolist()
        assert given["causal"] is True
        assert given["softmax_scale"] == 0.25
        assert given["max_seqlen_q"] == max(ends_q.diff().tolist())
        assert given["max_seqlen_k"] == max(lens)
        table = given["block_table"]
        assert isinstance(table, torch.Tensor)
        return paged_attention_reference(query, keys, values, table, lens, ends_q.tolist())

    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    assert_attends(FlashAttention(0.25))


def test_flashinfer_is_asked_for_a_steps_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in computes what flashinfer documents for these arguments; the package itself is not here."""

    class Wrapper:
        def __init__(self, workspace: torch.Tensor, layout: str) -> None:
            assert (workspace.dtype, layout) == (torch.uint8, "NHD")

        def plan(self, *given: Any, causal: bool, sm_scale: float, q_data_type: torch.dtype) -> None:
            starts, block_starts, self.indices, last_lens, *shape = given
            assert (causal, sm_scale, q_data_type, shape) == (True, 0.25, torch.float32, [4, 2, 16, 4])
            self.starts, self.block_starts = starts.tolist(), block_starts.tolist()
            self.lens = ((block_starts.diff() - 1) * 4 + last_lens).tolist()

        def run(self, query: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            table = torch.zeros(len(self.lens), 3, dtype=torch.int32)
            for row, (first, last) in enumerate(itertools.pairwise(self.block_starts)):
                table[row, : last - first] = self.indices[first:last]
            return paged_attention_reference(query, *caches, table, self.lens, self.starts)

    module = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = Wrapper  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    assert not FlashInfer.can_capture
    assert_attends(FlashInfer(HEADS, 4, 0.25))


def assert_attends(backend: AttentionBackend) -> None:
    """Fail unless a backend computes a step of a decode and a chunk, in two layers."""
    query, table = torch.randn(4, 4, 16), torch.randperm(6).int().view(2, 3)
    lens, new = int_array([9, 3]), int_array([1, 3])
    starts = torch.tensor([0, 1, 4], dtype=torch.int32)
    planned = backend.plan(new, lens, 1)
    sequences = Sequences(block_table=table, seq_lens=torch.from_numpy(lens), query_start_loc=starts)
    attend = planned.bind(sequences, [torch.from_numpy(array) for array in planned.arrays])
    for _layer in range(2):
        caches = Caches(torch.randn(6, 4, 2, 16), torch.randn(6, 4, 2, 16))
        wanted = paged_attention_reference(query, caches.keys, caches.values, table, [9, 3], [0, 1, 4])
        assert torch.equal(attend(query, caches), wanted)
