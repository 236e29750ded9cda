"""A matrix product with a weight that never changes, packed where the CPU's library can."""

from __future__ import annotations

import logging

import torch

from tidemill_kernels.linear.reference import linear_reference

__all__ = ["PackedLinear", "can_pack", "linear_reference"]

logger = logging.getLogger(__name__)

_TYPICAL_BATCH = 16


class PackedLinear:
    """`x @ weight.T + bias`; weight `[out, in]`, bias `[out]` or None, x `[num_tokens, in]`, one dtype.

    bfloat16 weights are laid out once for oneDNN where it can; float32 ones stay as they are, since there
    the plain product is as fast and equals other programs' more closely.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias {tuple(bias.shape)} does not fit weight {tuple(weight.shape)}")
        self._bias = bias
        self._is_packed = weight.device.type == "cpu" and can_pack(weight.dtype)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_BATCH)  # noqa: SLF001
            if self._is_packed
            else weight.contiguous()
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product: `[num_tokens, out]`."""
        if not self._is_packed:
            return torch.nn.functional.linear(x, self._weight, self._bias)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            x, self._weight, self._bias, "none", [], ""
        )
        return product


def _packing_works() -> bool:
    """Try the packed path once and compare it with the plain one: it is not a stable interface of torch."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x, weight, bias = torch.randn(3, 32), torch.randn(48, 32), torch.randn(48)
    x, weight, bias = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_BATCH)  # noqa: SLF001
        product = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # noqa: SLF001
    except (RuntimeError, AttributeError) as error:
        logger.warning("packed weights do not work here, plain ones do: %s", error)
        return False
    return torch.allclose(product.float(), linear_reference(x, weight, bias).float(), rtol=0.05, atol=0.2)


_works: list[bool] = []


def can_pack(dtype: torch.dtype) -> bool:
    """Say whether weights of this dtype are packed on this machine."""
    if dtype is not torch.bfloat16:
        return False
    if not _works:
        _works.append(_packing_works())
    return _works[0]
