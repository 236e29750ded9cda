"""Reads a safetensors file: eight bytes of length, a JSON head, then values, all little-endian.

Knows the container format (github.com/huggingface/safetensors, "Format"). Does not know what a tensor means.
The bytes stay in the page cache until they are asked for.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill_engine.errors import ModelLoadError

_LARGEST_HEAD_BYTES = 100 << 20
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_RAW: dict[str, np.dtype[Any]] = {
    **_DTYPES,
    "I8": np.dtype("i1"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F8_E4M3": np.dtype("u1"),
}
"""What tensors are had as they are: float8 as its bits."""


class SafetensorsFile:
    """One open file."""

    def __init__(self, path: Path) -> None:
        try:
            self._data = np.memmap(path, mode="r", dtype=np.uint8)
            length = int.from_bytes(self._data[:8].tobytes(), "little")
            if not 2 <= length <= min(_LARGEST_HEAD_BYTES, len(self._data) - 8):
                raise ValueError(f"its head can't be {length} bytes long")
            self._head: dict[str, Any] = json.loads(self._data[8 : 8 + length].tobytes())
            self._head.pop("__metadata__", None)
            self._start = 8 + length
            for name in self._head:
                self._check(name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelLoadError(f"the safetensors file {path.name} is broken: {error}") from error
        except OSError as error:
            raise ModelLoadError(f"{path} can't be read: {error.strerror}") from error

    @property
    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._head)

    def values(self, name: str) -> npt.NDArray[np.float32] | npt.NDArray[np.uint16]:
        """Return a tensor's values: bfloat16 as uint16, everything else as float32."""
        entry = self._head[name]
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ModelLoadError(
                f"tensor {name} is of type {entry['dtype']}, which can't be read", reason="UnsupportedModel"
            )
        raw = self._view(name, dtype)
        return raw if entry["dtype"] == "BF16" else np.asarray(raw, dtype=np.float32)

    def dtype_of(self, name: str) -> str:
        """Return a tensor's dtype as the format names it."""
        return str(self._head[name]["dtype"])

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return tuple(self._head[name]["shape"])

    def raw(self, name: str, dtypes: tuple[str, ...]) -> npt.NDArray[Any]:
        """Return a tensor as it is: `dtypes` are those that it may have, float8 as its bits."""
        found = self.dtype_of(name)
        if found not in dtypes:
            raise ModelLoadError(
                f"tensor {name} is of type {found}, not {' or '.join(dtypes)}", reason="UnsupportedModel"
            )
        return self._view(name, _RAW[found])

    def _view(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        entry = self._head[name]
        begin, end = entry["data_offsets"]
        return self._data[self._start + begin : self._start + end].view(dtype).reshape(entry["shape"])

    def _check(self, name: str) -> None:
        """Raise unless a tensor's bytes lie within the file and fill its shape."""
        entry = self._head[name]
        begin, end = _whole_numbers(name, entry["data_offsets"])
        if not 0 <= begin <= end <= len(self._data) - self._start:
            raise ValueError(f"tensor {name} reaches past its end")
        dtype, shape = _RAW.get(entry["dtype"]), _whole_numbers(name, entry["shape"])
        if dtype is None:
            return
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"tensor {name} has {end - begin} bytes for a shape of {shape}")
        self._view(name, dtype)  # an empty one may still be too wide


def _whole_numbers(name: str, values: object) -> list[int]:
    """Return a list of sizes or places of a tensor, none of them negative."""
    if isinstance(values, list) and all(type(value) is int and value >= 0 for value in values):
        return values
    raise ValueError(f"tensor {name} has {values!r} where whole numbers belong")
