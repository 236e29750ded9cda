"""A step's numbers from the host to the device in one copy.

Knows arrays of 32-bit words. Each lies at a multiple of 128 bytes, so that kernels, which are compiled for
what they know of alignment, always see the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidemill_engine.runner.gpu.device import Device

_WORDS = 32


def send_together(device: Device, arrays: Sequence[npt.NDArray[np.generic]]) -> list[torch.Tensor]:
    """Return each array as an int32 tensor on the device, flat; other types as the words they consist of."""
    words = [np.ascontiguousarray(array).reshape(-1).view(np.int32) for array in arrays]
    starts = [0]
    for array in words:
        starts.append(starts[-1] + -(-len(array) // _WORDS) * _WORDS)
    packed = np.zeros(max(1, starts[-1]), dtype=np.int32)
    for start, array in zip(starts, words, strict=False):
        packed[start : start + len(array)] = array
    there = device.send(torch.from_numpy(packed))
    return [there[start : start + len(array)] for start, array in zip(starts, words, strict=False)]
