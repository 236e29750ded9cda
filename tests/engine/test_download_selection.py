"""Which files are taken, and what is said where none will do."""

from __future__ import annotations

import pytest

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.selection import MAX_FILES, MAX_TEXT_BYTES, RemoteFile, select_files


def files(*names: str, size: int = 1) -> list[RemoteFile]:
    return [RemoteFile(path=name, key=name, size=size) for name in names]


def taken(*names: str, wanted: str | None = None) -> list[str]:
    return [file.path for file in select_files(files(*names), wanted).files]


def test_takes_safetensors_with_what_belongs_to_them() -> None:
    names = ("config.json", "model-1.safetensors", "model.safetensors.index.json", "merges.txt", "x.jinja")
    assert set(taken(*names, "a.py", "pytorch_model.bin", "onnx/m.safetensors", "LICENSE")) == set(names)


def test_takes_one_of_two_copies_of_the_weights() -> None:
    assert "consolidated.safetensors" not in taken("consolidated.safetensors", "model.safetensors")
    assert taken("consolidated.safetensors") == ["consolidated.safetensors"]


def test_prefers_safetensors_to_gguf() -> None:
    assert taken("a.gguf", "model.safetensors") == ["model.safetensors"]


def test_takes_the_only_gguf() -> None:
    selection = select_files(files("a.gguf", "README.md"))
    assert (selection.single, selection.total_bytes) == ("a.gguf", 1)


@pytest.mark.parametrize(
    ("names", "wanted", "failure", "words"),
    [
        (("a.gguf", "b.gguf"), None, Failure.UNSUPPORTED, "a.gguf, b.gguf"),
        (("pytorch_model.bin", "config.json"), None, Failure.UNSUPPORTED, "pickle"),
        (("config.json",), None, Failure.UNSUPPORTED, "no weights"),
        (("a.gguf",), "b.gguf", Failure.NOT_FOUND, "there are a.gguf"),
        (("a.safetensors",), "a.safetensors", Failure.UNSUPPORTED, "no .gguf file"),
        (("../a.gguf",), "../a.gguf", Failure.UNSUPPORTED, "leads out of the folder"),
        (("/etc/a.gguf",), "/etc/a.gguf", Failure.UNSUPPORTED, "leads out of the folder"),
    ],
)
def test_says_why_nothing_is_taken(
    names: tuple[str, ...], wanted: str | None, failure: Failure, words: str
) -> None:
    with pytest.raises(DownloadError, match=words) as refused:
        select_files(files(*names), wanted)
    assert refused.value.failure is failure


def test_bounds_files_and_their_number() -> None:
    many = files(*(f"{n}.json" for n in range(MAX_FILES + 1)))
    huge = [*files("a.safetensors"), *files("tokenizer.json", size=MAX_TEXT_BYTES + 1)]
    enormous = files("a.safetensors", size=1 << 50)
    for listed in (many, huge, enormous):
        with pytest.raises(DownloadError) as refused:
            select_files(listed)
        assert refused.value.failure is Failure.TOO_LARGE
