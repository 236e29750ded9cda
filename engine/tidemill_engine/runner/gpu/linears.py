"""Matrix products on a device, by how weights are held there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_engine.errors import ModelLoadError
from tidemill_kernels.linear import PackedLinear
from tidemill_kernels.weight_quant.quantize import quantize_int8
from tidemill_kernels.weight_quant.triton_kernel import scaled_linear

if TYPE_CHECKING:
    import torch

    from tidemill_engine.config import Quantization
    from tidemill_engine.models.llama_weights import MakeLinear


class Int8Linear:
    """`x @ weight.T + bias` with the weight in int8; activations stay in the model's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = quantize_int8(weight)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product: `[num_tokens, out]`."""
        product = scaled_linear(x, self._packed)
        return product if self._bias is None else product.add_(self._bias)


def linear_maker(quantization: Quantization | None) -> MakeLinear:
    """Return what holds a weight as was asked for."""
    if quantization is None:
        return PackedLinear
    if quantization == "int8":
        return Int8Linear
    raise ModelLoadError(f"a GPU computes int8, not {quantization}, yet", reason="InvalidConfig")
