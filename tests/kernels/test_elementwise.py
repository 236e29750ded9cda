"""rms_norm, rope, silu_mul and linear against their oracles, with odd sizes."""

from __future__ import annotations

import pytest
import torch

from tidemill_kernels.linear import PackedLinear, can_pack, linear_reference
from tidemill_kernels.rms_norm import rms_norm, rms_norm_reference
from tidemill_kernels.rope import RopeTable, apply_rope, rope_reference
from tidemill_kernels.silu_mul import silu_mul, silu_mul_reference

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
ROPE_TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 2e-2}
"""Angles are float32, as in transformers: at position 511 that is worth 3e-5."""
SHAPES = ((1, 8), (3, 576), (65, 33))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_is_its_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[1], dtype=dtype, seed=1)
    assert_close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5), TOLERANCE[dtype])


def test_rms_norm_of_tiny_values_is_held_by_eps() -> None:
    x = torch.full((1, 4), 1e-20)
    torch.testing.assert_close(rms_norm(x, torch.ones(4), 1e-6), x * 1e3)


def test_rms_norm_refuses_a_weight_of_another_size() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        rms_norm(torch.zeros(2, 4), torch.ones(5), 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [2, 6, 64])
def test_rope_is_its_reference_at_any_positions(head_dim: int, dtype: torch.dtype) -> None:
    positions = torch.tensor([0, 5, 511, 5])
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    table = RopeTable(frequency, max_positions=512, dtype=dtype)
    x = random(4, 3, head_dim, dtype=dtype)
    rotated = apply_rope(x, *table.at(positions))
    assert_close(rotated, rope_reference(x, positions, 10000.0), ROPE_TOLERANCE[dtype])


def test_rope_keeps_lengths_and_leaves_position_0_alone() -> None:
    table = RopeTable(torch.tensor([1.0, 0.3, 0.1, 0.03]), max_positions=16, dtype=torch.float32)
    x = random(2, 1, 8, dtype=torch.float32)
    rotated = apply_rope(x, *table.at(torch.tensor([0, 9])))
    torch.testing.assert_close(rotated[0], x[0])
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    assert not torch.allclose(rotated[1], x[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 34), (17, 3072)])
def test_silu_mul_is_its_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = random(*shape, dtype=dtype)
    assert_close(silu_mul(gate_up), silu_mul_reference(gate_up), TOLERANCE[dtype])


def test_silu_mul_refuses_an_odd_width() -> None:
    with pytest.raises(ValueError, match="even width"):
        silu_mul(torch.zeros(1, 3))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (5, 33, 17), (64, 576, 960)])
def test_linear_is_its_reference(shape: tuple[int, int, int], dtype: torch.dtype, has_bias: bool) -> None:
    num_tokens, size_in, size_out = shape
    x = random(num_tokens, size_in, dtype=dtype)
    weight = (random(size_out, size_in, dtype=torch.float32, seed=1) / size_in**0.5).to(dtype)
    bias = random(size_out, dtype=dtype, seed=2) if has_bias else None
    assert_close(PackedLinear(weight, bias)(x), linear_reference(x, weight, bias), TOLERANCE[dtype])


def test_linear_leaves_float32_weights_plain() -> None:
    assert not can_pack(torch.float32)


def test_linear_refuses_a_bias_of_another_size() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        PackedLinear(torch.zeros(4, 3), torch.zeros(3))
