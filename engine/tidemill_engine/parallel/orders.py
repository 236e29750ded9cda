"""What rank 0 tells the other ranks, to launch a step or to end the oldest, and what a failing one tells.

Knows bytes and the step contract. The others never schedule: they do what rank 0's runner does, in its order.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tidemill_engine.step import SchedulerOutput


class RankOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0 -> another: launch this step (as `encode_step` wrote it), or without one, sample the oldest."""

    step: bytes | None = None


class RankFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Another rank -> rank 0, its last words; `reason` is CamelCase as in `CoreFailed`."""

    reason: str
    message: str


def _array_to_wire(value: Any) -> Any:
    """Write an int32 array as its shape and bytes."""
    if isinstance(value, np.ndarray) and value.dtype == np.int32:
        return (value.shape, value.tobytes())
    raise NotImplementedError(f"a {type(value).__name__} does not cross to another rank")


def _array_from_wire(_type: type, value: Any) -> Any:
    """Read an int32 array."""
    shape, data = value
    return np.frombuffer(data, dtype=np.int32).reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_array_to_wire)
_DECODER = msgspec.msgpack.Decoder(SchedulerOutput, dec_hook=_array_from_wire)


def encode_step(output: SchedulerOutput) -> bytes:
    """Return the bytes of one step."""
    return _ENCODER.encode(output)


def decode_step(data: bytes) -> SchedulerOutput:
    """Return the step; its arrays can't be written to."""
    return _DECODER.decode(data)
