"""The container of safetensors: what it holds is had as it is, and a head that lies is an error in words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.safetensors_file import SafetensorsFile

DATA = np.arange(4, dtype="<f4").tobytes()
RIGHT = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def write(path: Path, head: object) -> Path:
    said = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(len(said).to_bytes(8, "little") + said + DATA)
    return path


def test_tensors_are_had_as_they_are_empty_ones_too(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 4], "data_offsets": [16, 16]}
    file = SafetensorsFile(write(tmp_path / "m", {"a": RIGHT, "b": empty, "__metadata__": {"format": "pt"}}))
    assert file.names == ["a", "b"]
    np.testing.assert_array_equal(file.values("a"), [[0, 1], [2, 3]])
    assert file.shape_of("b") == file.values("b").shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_offsets": [0, 20]}, "past its end"),
        ({"data_offsets": [-16, 0]}, "whole numbers"),
        ({"data_offsets": [0.0, 16.0]}, "whole numbers"),
        ({"data_offsets": [math.nan, 16]}, "whole numbers"),
        ({"data_offsets": [0, 8]}, "8 bytes"),
        ({"data_offsets": [0]}, "not enough values"),
        ({"shape": [-2, -2]}, "whole numbers"),
        ({"shape": [2.0, 2]}, "whole numbers"),
        ({"shape": "22"}, "whole numbers"),
        ({"shape": [1 << 32, 1 << 32]}, "16 bytes"),
        ({"shape": [0, 1 << 80], "data_offsets": [0, 0]}, "broken"),
        ({"dtype": ["F32"]}, "broken"),
    ],
    ids=str,
)
def test_a_head_that_lies_is_an_error(tmp_path: Path, change: dict[str, object], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words) as refused:
        SafetensorsFile(write(tmp_path / "m", {"a": RIGHT | change}))
    assert "the safetensors file m is broken" in refused.value.message


@pytest.mark.parametrize("head", [b"[]", b"7", b"{", b'{"a":' * 100_000, b'{"a": 3}'], ids=len)
def test_a_head_that_is_none_is_an_error(tmp_path: Path, head: bytes) -> None:
    with pytest.raises(ModelLoadError, match="broken"):
        SafetensorsFile(write(tmp_path / "m", head))
