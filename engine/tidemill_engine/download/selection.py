"""Which of a source's files are downloaded: what the engine reads, and never code or pickle. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tidemill_engine.download.errors import DownloadError, Failure

MAX_FILES = 2000
MAX_TEXT_BYTES = 256 * 1024**2
"""For configuration, tokenizers and templates: larger ones are not what they say."""
MAX_TOTAL_BYTES = 4 * 1024**4

_WEIGHTS = (".safetensors", ".gguf")
_TEXT = (".json", ".txt", ".jinja", ".model", ".tiktoken")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, kw_only=True)
class Digest:
    """What a file's bytes must come to; `git-sha1` is git's name of a blob."""

    kind: str
    value: str


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file as its service lists it; `path` is relative to what the URI names, `key` the service's own."""

    path: str
    key: str
    size: int
    version: str = ""
    digest: Digest | None = None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The files to download; `single` is the one file that is the model, if it is one file."""

    files: tuple[RemoteFile, ...]
    single: str | None = None

    @property
    def total_bytes(self) -> int:
        """Return how many bytes the files have."""
        return sum(file.size for file in self.files)


def select_files(available: Iterable[RemoteFile], wanted: str | None = None) -> Selection:
    """Choose files, or say why none of them will do; `wanted` names one .gguf file."""
    files = list(available)
    if len(files) > MAX_FILES:
        raise DownloadError(Failure.TOO_LARGE, f"there are {len(files)} files; at most {MAX_FILES} are taken")
    chosen = _one(files, wanted) if wanted is not None else _directory(files)
    _check_bounds(chosen)
    single = chosen[0].path if len(chosen) == 1 and chosen[0].path.endswith(".gguf") else None
    return Selection(files=tuple(sorted(chosen, key=lambda file: file.path)), single=single)


def _one(files: Sequence[RemoteFile], wanted: str) -> list[RemoteFile]:
    if not wanted.endswith(".gguf"):
        raise DownloadError(
            Failure.UNSUPPORTED,
            f"{wanted} is no .gguf file; other models are folders: leave it out of the URI",
        )
    found = [file for file in files if file.path == wanted]
    if not found:
        raise DownloadError(Failure.NOT_FOUND, f"there is no file {wanted}{_list_ggufs(files)}")
    return found


def _directory(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Take the files of the folder itself; folders below hold other formats of the same model."""
    here = [file for file in files if len(PurePosixPath(file.path).parts) == 1]
    tensors = [file for file in here if file.path.endswith(".safetensors")]
    ggufs = [file for file in here if file.path.endswith(".gguf")]
    if any(not file.path.startswith("consolidated") for file in tensors):
        tensors = [file for file in tensors if not file.path.startswith("consolidated")]
    if tensors:
        return [*tensors, *(file for file in here if file.path.endswith(_TEXT))]
    if len(ggufs) == 1:
        return ggufs
    raise DownloadError(Failure.UNSUPPORTED, _why_nothing(here, ggufs))


def _why_nothing(here: Sequence[RemoteFile], ggufs: Sequence[RemoteFile]) -> str:
    if ggufs:
        return f"there are {len(ggufs)} .gguf files: add the one that you want to the URI{_list_ggufs(ggufs)}"
    pickles = [file.path for file in here if file.path.endswith(_PICKLES)]
    if pickles:
        return (
            f"the weights are pickle files ({pickles[0]}), which can run code and are never read; "
            "convert them to safetensors"
        )
    return f"there are no weights: none of {len(here)} files ends in {' or '.join(_WEIGHTS)}"


def _list_ggufs(files: Sequence[RemoteFile]) -> str:
    names = sorted(file.path for file in files if file.path.endswith(".gguf"))
    return f"; there are {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else ""


def _check_bounds(files: Sequence[RemoteFile]) -> None:
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or "\\" in file.path or "\0" in file.path:
            raise DownloadError(Failure.UNSUPPORTED, f"the file name {file.path!r} leads out of the folder")
        if not file.path.endswith(_WEIGHTS) and file.size > MAX_TEXT_BYTES:
            raise DownloadError(
                Failure.TOO_LARGE,
                f"{file.path} has {file.size} bytes; such a file has {MAX_TEXT_BYTES} at most",
            )
    total = sum(file.size for file in files)
    if total > MAX_TOTAL_BYTES:
        raise DownloadError(
            Failure.TOO_LARGE, f"the model has {total} bytes; at most {MAX_TOTAL_BYTES} are taken"
        )
