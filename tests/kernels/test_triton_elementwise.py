"""Kernels that go over rows, in Triton's interpreter, against their references."""

from __future__ import annotations

import pytest
import torch

from kernel_device import FLOATS, seeded, tolerances
from tidemill_kernels.batch_prep.reference import prepare_batch_reference
from tidemill_kernels.batch_prep.triton_kernel import prepare_batch
from tidemill_kernels.block_copy.reference import copy_blocks_reference
from tidemill_kernels.block_copy.triton_kernel import copy_blocks
from tidemill_kernels.rms_norm import rms_norm_reference
from tidemill_kernels.rms_norm.launch import MAX_SIZE, plan_norm
from tidemill_kernels.rms_norm.triton_kernel import add_rms_norm
from tidemill_kernels.rope_kv_write import QkvLayout, Rotation
from tidemill_kernels.rope_kv_write.reference import rope_kv_write_reference
from tidemill_kernels.rope_kv_write.triton_kernel import rope_kv_write
from tidemill_kernels.silu_mul import silu_mul_reference
from tidemill_kernels.silu_mul.launch import plan_gate
from tidemill_kernels.silu_mul.triton_kernel import silu_mul

TOLERANCE = tolerances(2e-6, 2e-3)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed)).to(dtype)


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (2, 576), (0, 64)])
def test_normalises_rows_of_odd_sizes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = normal(*shape, dtype=dtype), normal(shape[1], dtype=dtype, seed=1)
    assert_close(add_rms_norm(x, None, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", FLOATS)
def test_adds_the_residual_before_it_normalises_and_keeps_the_sum(dtype: torch.dtype) -> None:
    x, residual = normal(5, 100, dtype=dtype), normal(5, 100, dtype=dtype, seed=1)
    weight, total = normal(100, dtype=dtype, seed=2), x + residual
    found = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert_close(found, rms_norm_reference(total, weight, 1e-5))


def test_refuses_rows_that_no_program_holds() -> None:
    with pytest.raises(ValueError, match=str(MAX_SIZE + 1)):
        plan_norm(MAX_SIZE + 1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 2), (3, 74), (2, 3072), (0, 8)])
def test_gates_rows_of_odd_sizes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = normal(*shape, dtype=dtype) * 8
    assert_close(silu_mul(gate_up), silu_mul_reference(gate_up))


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 14336])
def test_a_gate_launch_covers_every_column(size: int) -> None:
    launch = plan_gate(7, size)
    assert launch.grid[0] == 7
    assert (launch.grid[1] - 1) * launch.block < size <= launch.grid[1] * launch.block


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 10), (8, 1, 96)])
def test_rotates_queries_and_writes_keys_and_values(
    heads: int, kv_heads: int, head_dim: int, *, has_norm: bool, dtype: torch.dtype
) -> None:
    layout = QkvLayout(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)
    angles = normal(50, head_dim // 2, seed=3)
    norms = (normal(head_dim, dtype=dtype, seed=4), normal(head_dim, dtype=dtype, seed=5))
    rotation = Rotation(
        cos=angles.cos(),
        sin=angles.sin(),
        q_norm=norms[0] if has_norm else None,
        k_norm=norms[1] if has_norm else None,
    )
    qkv = normal(4, layout.width, dtype=dtype)
    positions, slots = torch.tensor([0, 49, 7, 8]), torch.tensor([5, -1, 0, 11])
    found = [torch.zeros(3, 4, kv_heads, head_dim, dtype=dtype) for _ in range(2)]
    wanted = [torch.zeros(3, 4, kv_heads, head_dim, dtype=dtype) for _ in range(2)]
    query = rope_kv_write(qkv, positions, slots, (found[0], found[1]), layout, rotation)
    expected = rope_kv_write_reference(qkv, positions, slots, (wanted[0], wanted[1]), layout, rotation)
    assert_close(query, expected)
    for cache, reference in zip(found, wanted, strict=True):
        assert_close(cache, reference)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_writes_narrow_keys_and_values_with_a_scale_for_each_head(kind: torch.dtype) -> None:
    layout = QkvLayout(num_heads=4, num_kv_heads=2, head_dim=10)
    angles = normal(50, 5, seed=3)
    rotation = Rotation(cos=angles.cos(), sin=angles.sin())
    qkv = normal(4, layout.width)
    qkv[3, 50:60] = 0.0  # a head of zeros
    qkv[0] *= 1000
    places = torch.tensor([0, 49, 7, 8]), torch.tensor([5, -1, 0, 11])
    read = []
    for write in (rope_kv_write, rope_kv_write_reference):
        caches = [torch.zeros(3, 4, 2, 10, dtype=kind) for _ in range(2)]
        scales = [torch.zeros(3, 4, 2) for _ in range(2)]
        write(qkv, *places, (caches[0], caches[1]), layout, rotation, scales=(scales[0], scales[1]))
        read += [cache.float() * scale[..., None] for cache, scale in zip(caches, scales, strict=True)]
    step = 1 / 127 if kind == torch.int8 else 1 / 8
    plain = [torch.zeros(3, 4, 2, 10) for _ in range(2)]
    rope_kv_write_reference(qkv, *places, (plain[0], plain[1]), layout, rotation)
    for found, wanted, exact in zip(read[:2], read[2:], plain, strict=True):
        # A number just between two may be rounded to either.
        largest = exact.abs().amax(-1, keepdim=True)
        assert ((found - wanted).abs() <= largest * step * 1.01).all()
        assert ((found - exact).abs() <= largest * step * 0.51).all()
        assert (found[0, 1:4] == 0).all()


def test_a_cache_and_its_scales_go_together() -> None:
    layout = QkvLayout(num_heads=2, num_kv_heads=1, head_dim=8)
    rotation = Rotation(cos=torch.ones(4, 4), sin=torch.zeros(4, 4))
    caches = [torch.zeros(1, 4, 1, 8, dtype=torch.int8) for _ in range(2)]
    with pytest.raises(ValueError, match="needs scales"):
        rope_kv_write(
            normal(1, layout.width), torch.zeros(1), torch.zeros(1), (caches[0], caches[1]), layout, rotation
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_copies_blocks_and_leaves_the_others(dtype: torch.dtype) -> None:
    source, pairs = (normal(6, 5, 3, 7) * 50).to(dtype), torch.tensor([[0, 4], [3, 1], [2, 5]])
    found, wanted = torch.zeros_like(source), torch.zeros_like(source)
    copy_blocks(source, found, pairs)
    copy_blocks_reference(source, wanted, pairs)
    assert torch.equal(found, wanted)


def test_copies_nothing_when_there_is_nothing_to_copy() -> None:
    source = normal(2, 4)
    copy_blocks(source, source, torch.empty(0, 2, dtype=torch.int64))
    assert torch.equal(source, normal(2, 4))


def test_builds_a_step_from_rows_that_live_on_the_device() -> None:
    pool = torch.randint(0, 1000, (8, 700), dtype=torch.int32, generator=seeded(0))
    table = torch.randperm(8 * 44, generator=seeded(1)).view(8, 44).int()
    rows, start = torch.tensor([6, 0, 3], dtype=torch.int32), torch.tensor([17, 0, 699], dtype=torch.int32)
    counts = torch.tensor([600, 1, 1])
    query_start = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    found = prepare_batch(rows, start, query_start, (pool, table), 16, (602, 600))
    ids, positions, slots = prepare_batch_reference(rows, start, counts, pool, table, 16)
    assert torch.equal(found.input_ids, ids)
    assert torch.equal(found.positions, positions)
    assert torch.equal(found.slot_mapping, slots)
