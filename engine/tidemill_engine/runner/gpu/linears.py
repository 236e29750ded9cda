"""Matrix products on a device, by how weights are held there: plain, of 8 bits, or of 4 as checkpoints have.

Knows weights. Does not know which matrix is what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.quantized import Int4Matrix, QuantizedMatrix
from tidemill_kernels.linear import PackedLinear
from tidemill_kernels.weight_quant import PackedInt4, ScaledWeight
from tidemill_kernels.weight_quant.launch import plan_product
from tidemill_kernels.weight_quant.quantize import quantize_fp8, quantize_int8
from tidemill_kernels.weight_quant.triton_kernel import int4_linear, scaled_linear

if TYPE_CHECKING:
    from tidemill_engine.config import Quantization
    from tidemill_engine.models.llama_weights import Linear, MakeLinear
    from tidemill_kernels.paged_attention.launch import Gpu

logger = logging.getLogger(__name__)

FP8_CAPABILITY = 89
"""Before sm_89 Triton knows no float8 of this kind."""


class QuantizedLinear:
    """`x @ weight.T + bias`; activations stay in the model's dtype."""

    def __init__(
        self,
        packed: ScaledWeight | PackedInt4,
        bias: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
    ) -> None:
        self.packed = packed
        self._bias = bias
        self._order = order

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product: `[num_tokens, out]`."""
        if self._order is not None:
            x = x[:, self._order]
        if isinstance(self.packed, ScaledWeight):
            product = scaled_linear(x, self.packed)
        else:
            product = int4_linear(x, self.packed)
        return product if self._bias is None else product.add_(self._bias)


def linear_maker(quantization: Quantization | None, gpu: Gpu) -> MakeLinear:
    """Return what holds a weight of plain numbers as was asked for."""
    if quantization is None:
        return PackedLinear
    if quantization == "fp8" and gpu.capability < FP8_CAPABILITY:
        raise ModelLoadError(
            f"--quantization fp8 needs a GPU of compute capability 8.9, not {gpu.capability / 10}; "
            "int8 takes as little memory",
            reason="InvalidConfig",
        )
    makers: dict[Quantization, Callable[[torch.Tensor], ScaledWeight]]
    makers = {"int8": quantize_int8, "fp8": quantize_fp8}
    if quantization not in makers:
        raise ModelLoadError(
            f"a GPU makes int8 or fp8 of weights, not {quantization}; four bits it takes from checkpoints",
            reason="InvalidConfig",
        )
    quantize = makers[quantization]
    return lambda weight, bias: QuantizedLinear(quantize(weight), bias)


class CheckpointLinears:
    """Products with matrices as a quantised checkpoint holds them."""

    def __init__(self, device: torch.device, dtype: torch.dtype, gpu: Gpu) -> None:
        self._device = device
        self._dtype = dtype
        self._has_float8 = gpu.capability >= FP8_CAPABILITY
        self._has_warned = False

    def make(self, matrix: QuantizedMatrix, bias: torch.Tensor | None) -> Linear:
        """Put a matrix onto the device."""
        if isinstance(matrix, Int4Matrix):
            packed = PackedInt4(
                words=self._there(matrix.words),
                zeros=self._there(matrix.zeros),
                scales=self._there(matrix.scales),
                group_size=matrix.group_size,
                layout=matrix.layout,
            )
            self._check(packed.group_size)
            order = None if matrix.order is None else self._there(matrix.order)
            return QuantizedLinear(packed, bias, order)
        if matrix.is_float and not self._has_float8:
            if not self._has_warned:
                logger.warning("this GPU has no fp8: weights take twice the checkpoint's memory")
                self._has_warned = True
            values = self._there(matrix.values())
            return PackedLinear(values.to(self._dtype), bias)
        numbers = self._there(matrix.numbers)
        is_one_group = len(matrix.scales) == 1
        scaled = ScaledWeight(
            weight=numbers.view(torch.float8_e4m3fn) if matrix.is_float else numbers,
            scale=self._there(matrix.scales[0] if is_one_group else matrix.scales),
            group_size=None if is_one_group else matrix.group_size,
        )
        self._check(scaled.group_size)
        return QuantizedLinear(scaled, bias)

    def _there(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(np.array(array, order="C")).to(self._device)

    @staticmethod
    def _check(group_size: int | None) -> None:
        """Refuse groups that no tile of the kernel divides, such as divided matrices may have."""
        try:
            plan_product(1, group_size)
        except ValueError as error:
            raise ModelLoadError(
                f"a quantised matrix can't be computed on a GPU: {error}", reason="UnsupportedModel"
            ) from error
