"""Reads the head of a GGUF file (version 2 and 3, little-endian): its keys, and where its tensors lie.

Knows the container format (ggml/docs/gguf.md). Does not know what a key means, and reads no tensor data.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill_engine.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_UINT32 = _SCALARS[4]
_UINT64 = _SCALARS[10]
_ARRAY_HEAD = struct.Struct("<IQ")
_FILE_HEAD = struct.Struct("<4sIQQ")


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufTensor:
    """Where a tensor lies: `shape` outermost first, `type_id` a ggml type, `offset` from the file start."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def num_elements(self) -> int:
        """Return the product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHead:
    """Everything before the tensor data."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf_head(path: Path) -> GgufHead:
    """Return a GGUF file's keys (arrays as lists) and tensors, or say why it can't be read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).head()
    except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        raise ModelLoadError(f"{path.name} is not a readable GGUF file: {error}") from error
    except OSError as error:
        raise ModelLoadError(f"{path} can't be read: {error.strerror}") from error


class _Reader:
    """A cursor over the file's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def head(self) -> GgufHead:
        """Read the head from the first byte on."""
        magic, version, num_tensors, num_keys = self._unpack(_FILE_HEAD)
        if magic != MAGIC:
            raise ValueError(f"it starts with {magic!r}, not {MAGIC!r}")
        if version not in VERSIONS:
            raise ValueError(f"version {version} is not one of {VERSIONS}")
        metadata = {self._string(): self._value(self._number(_UINT32)) for _ in range(num_keys)}
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        if alignment < 1:
            raise ValueError(f"alignment {alignment}")
        data_start = -(-self._offset // alignment) * alignment
        return GgufHead(metadata=metadata, tensors={t.name: _moved(t, data_start) for t in tensors})

    def _tensor(self) -> GgufTensor:
        """Read one tensor's description; its offset still counts from the data's start."""
        name = self._string()
        num_dimensions = self._number(_UINT32)
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
        innermost_first = [self._number(_UINT64) for _ in range(num_dimensions)]
        type_id = self._number(_UINT32)
        return GgufTensor(
            name=name, shape=tuple(reversed(innermost_first)), type_id=type_id, offset=self._number(_UINT64)
        )

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read a fixed layout."""
        values = layout.unpack_from(self._data, self._offset)
        self._offset += layout.size
        return values

    def _number(self, layout: struct.Struct) -> int:
        """Read one whole number."""
        return int(self._unpack(layout)[0])

    def _string(self) -> str:
        """Read a length and that many bytes of UTF-8."""
        end = self._number(_UINT64) + self._offset
        if end > len(self._data):
            raise ValueError("a string reaches past the end of the file")
        text = self._data[self._offset : end].decode()
        self._offset = end
        return text

    def _value(self, kind: int) -> Any:
        """Read a value of a kind."""
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack(_SCALARS[kind])[0]
        item_kind, length = self._unpack(_ARRAY_HEAD)
        if length > len(self._data) - self._offset:
            raise ValueError(f"an array of {length} values reaches past the end of the file")
        return [self._value(item_kind) for _ in range(length)]


def _moved(tensor: GgufTensor, data_start: int) -> GgufTensor:
    """Return the tensor with its offset counted from the file's start."""
    return GgufTensor(
        name=tensor.name,
        shape=tensor.shape,
        type_id=tensor.type_id,
        offset=tensor.offset + data_start,
    )
