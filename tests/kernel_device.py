"""Where the tests of Triton kernels compute: on the CPU, interpreted, or on a GPU that the environment names.

`make gpu-check` sets TIDEMILL_KERNEL_DEVICE; there bfloat16 is tested too, which the interpreter gets wrong.
"""

from __future__ import annotations

import os

import torch

DEVICE = torch.device(os.environ.get("TIDEMILL_KERNEL_DEVICE", "cpu"))
IS_GPU = DEVICE.type != "cpu"
FLOATS = (torch.float32, torch.float16, *((torch.bfloat16,) if IS_GPU else ()))

if IS_GPU:
    torch.set_default_device(DEVICE)


def seeded(seed: int) -> torch.Generator:
    """Return a generator of the device's."""
    return torch.Generator(device=DEVICE).manual_seed(seed)


def tolerances(float32: float, float16: float) -> dict[torch.dtype, float]:
    """Return what may differ in each dtype; a GPU's exponentials are less exact than a CPU's."""
    return {
        torch.float32: max(float32, 2e-5) if IS_GPU else float32,
        torch.float16: float16,
        torch.bfloat16: 8 * float16,
    }
