"""Products with 8 and 4 bit weights in Triton's interpreter, against their references."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from kernel_device import FLOATS, seeded, tolerances
from tidemill_kernels.weight_quant import AWQ_ORDER, PackedInt4, ScaledWeight
from tidemill_kernels.weight_quant.launch import plan_product
from tidemill_kernels.weight_quant.reference import (
    int4_linear_reference,
    scaled_linear_reference,
    unpack,
)
from tidemill_kernels.weight_quant.triton_kernel import int4_linear, scaled_linear

GENERATOR = seeded(0)
TOLERANCE = tolerances(1e-4, 2e-2)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR.manual_seed(sum(shape))).to(dtype)


def pack_columns(numbers: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Pack `[rows, 8 n]` numbers below 16 into `[rows, n]` words."""
    eights = numbers.view(numbers.shape[0], -1, 8)[..., list(order)].long()
    words = sum(eights[..., place] << (4 * place) for place in range(8))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def make_int4(
    in_features: int, out_features: int, group_size: int, layout: Literal["awq", "gptq"]
) -> tuple[PackedInt4, torch.Tensor]:
    """Pack random numbers; return them with the weight that they stand for."""
    groups = in_features // group_size
    generator = GENERATOR.manual_seed(3)
    nibbles = torch.randint(0, 16, (in_features, out_features), generator=generator)
    zeros = torch.randint(1, 16, (groups, out_features), generator=generator)
    scales = torch.rand(groups, out_features, generator=generator) + 0.5
    plain = tuple(range(8))
    if layout == "awq":
        words, zero_words = pack_columns(nibbles, AWQ_ORDER), pack_columns(zeros, AWQ_ORDER)
    else:
        words = pack_columns(nibbles.T.contiguous(), plain).T.contiguous()
        zero_words = pack_columns(zeros - 1, plain)
    packed = PackedInt4(words=words, zeros=zero_words, scales=scales, group_size=group_size, layout=layout)
    expanded = torch.arange(in_features) // group_size
    return packed, (nibbles - zeros[expanded]).float() * scales[expanded]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(1, 70, 33), (17, 128, 130), (0, 64, 64)])
def test_multiplies_by_int8_weights(tokens: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight = torch.randint(-127, 128, (outputs, inputs), generator=GENERATOR.manual_seed(1)).to(torch.int8)
    packed = ScaledWeight(weight=weight, scale=torch.rand(outputs, generator=GENERATOR) / 127)
    x, tolerance = normal(tokens, inputs, dtype=dtype), TOLERANCE[dtype]
    found, wanted = scaled_linear(x, packed), scaled_linear_reference(x, packed)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kind", "group_size"), [("int8", 32), ("fp8", None), ("fp8", 32)])
def test_multiplies_by_8_bits_with_a_scale_for_each_group(
    kind: str, group_size: int | None, dtype: torch.dtype
) -> None:
    x, tolerance = normal(17, 96, dtype=dtype), TOLERANCE[dtype]
    if kind == "int8":
        weight = (normal(40, 96) * 40).round().clamp(-127, 127).to(torch.int8)
    else:
        weight = (normal(40, 96) * 40).to(torch.float8_e4m3fn)
    shape = (40,) if group_size is None else (3, 40)
    scale = (torch.rand(shape, generator=GENERATOR) + 0.5) / 100
    packed = ScaledWeight(weight=weight, scale=scale, group_size=group_size)
    found, wanted = scaled_linear(x, packed), scaled_linear_reference(x, packed)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", ["awq", "gptq"])
def test_unpacks_what_was_packed(layout: Literal["awq", "gptq"]) -> None:
    packed, weight = make_int4(64, 24, 32, layout)
    assert torch.equal(unpack(packed), weight)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["awq", "gptq"])
@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs", "group"), [(1, 128, 40, 32), (19, 256, 136, 128), (3, 192, 40, 96)]
)
def test_multiplies_by_four_bit_weights(
    tokens: int, inputs: int, outputs: int, group: int, layout: Literal["awq", "gptq"], dtype: torch.dtype
) -> None:
    packed, _ = make_int4(inputs, outputs, group, layout)
    x, tolerance = normal(tokens, inputs, dtype=dtype) / 16, TOLERANCE[dtype]
    found, wanted = int4_linear(x, packed), int4_linear_reference(x, packed)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * 8)


def test_refuses_groups_that_no_tile_divides() -> None:
    with pytest.raises(ValueError, match="24"):
        plan_product(4, group_size=24)


def test_an_iteration_takes_the_largest_power_of_two_that_divides_a_group() -> None:
    found = {size: plan_product(4, group_size=size).inputs for size in (16, 48, 96, 128, 8928)}
    assert found == {16: 16, 48: 16, 96: 32, 128: 64, 8928: 32}


def test_tiles_cover_every_row_and_column() -> None:
    for tokens in (1, 16, 17, 500):
        launch = plan_product(tokens)
        grid = launch.grid(tokens, 4097)
        assert grid[0] * launch.rows >= tokens
        assert grid[1] * launch.columns >= 4097
