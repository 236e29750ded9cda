"""Reads the key-value section at the head of a GGUF file (version 2 and 3, little-endian) and no further.

Knows the container format (ggml/docs/gguf.md); does not know what any key means and never touches tensor
data.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from tidemill_engine.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
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
_LENGTH = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IQ")
_FILE_HEAD = struct.Struct("<4sIQQ")


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Return every key of a GGUF file with its value; arrays as lists."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata()
    except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        raise ModelLoadError(f"{path.name} is not a readable GGUF file: {error!r}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def metadata(self) -> dict[str, Any]:
        magic, version, _, num_keys = self._unpack(_FILE_HEAD)
        if magic != MAGIC or version not in VERSIONS:
            raise ValueError(f"magic {magic!r}, version {version}")
        return {self._string(): self._value(self._unpack(_SCALARS[4])[0]) for _ in range(num_keys)}

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._data, self._offset)
        self._offset += layout.size
        return values

    def _string(self) -> str:
        (length,) = self._unpack(_LENGTH)
        end = self._offset + length
        if end > len(self._data):
            raise ValueError(f"a string of {length} bytes reaches past the end of the file")
        text = self._data[self._offset : end].decode()
        self._offset = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack(_SCALARS[kind])[0]
        item_kind, length = self._unpack(_ARRAY_HEAD)
        if length > len(self._data) - self._offset:
            raise ValueError(f"an array of {length} values reaches past the end of the file")
        return [self._value(item_kind) for _ in range(length)]
