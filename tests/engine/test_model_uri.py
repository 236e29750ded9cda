from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tidemill_engine.errors import InvalidConfig, ModelLoadError
from tidemill_engine.model_uri import (
    BUILTIN_MODELS,
    BuiltinModel,
    FileModel,
    SimModel,
    default_model_name,
    find_model_path,
    parse_model_uri,
)


def test_a_sim_uri_gives_its_parameters() -> None:
    uri = "sim://demo?step_ms=2.5&startup_ms=100&num_blocks=9&max_model_len=64&output_tokens=3&fail=load:No%20luck"
    assert parse_model_uri(uri) == SimModel(
        name="demo",
        step_ms=2.5,
        startup_ms=100.0,
        num_blocks=9,
        max_model_len=64,
        output_tokens=3,
        fail_load="No luck",
    )
    assert parse_model_uri("sim://demo") == SimModel(name="demo")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("smollm2", "no scheme"),
        ("s3://bucket/model", "'s3' is not supported"),
        ("builtin://gpt-9", "smollm2-135m"),
        ("sim://", "sim://NAME"),
        ("sim://a/b", "sim://NAME"),
        ("sim://a?speed=1", "'speed'"),
        ("sim://a?name=b", "'name'"),
        ("sim://a?step_ms=1&step_ms=2", "twice"),
        ("sim://a?step_ms=fast", "'fast'"),
        ("sim://a?step_ms=-1", "'-1'"),
        ("sim://a?step_ms=nan", "'nan'"),
        ("sim://a?num_blocks=0", "at least 1"),
        ("sim://a?output_tokens=1.5", "whole number"),
        ("sim://a?fail=run:x", "load:Message"),
        ("file://relative/path", "absolute"),
        ("file://", "absolute"),
    ],
)
def test_a_uri_that_cannot_work_is_refused_with_what_is_wrong(uri: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=r".+") as caught:
        parse_model_uri(uri)
    assert message in caught.value.message


def test_an_unknown_scheme_lists_what_works() -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_model_uri("ftp://x")
    for scheme in ("builtin://", "file://", "sim://"):
        assert scheme in caught.value.message


def test_the_served_name_comes_from_the_uri() -> None:
    assert default_model_name(parse_model_uri("builtin://smollm2-135m")) == "smollm2-135m"
    assert default_model_name(parse_model_uri("file:///models/tiny.Q4.gguf")) == "tiny.Q4"
    assert default_model_name(parse_model_uri("file:///models/tiny-1.5b")) == "tiny-1.5b"
    assert default_model_name(parse_model_uri("sim://demo?step_ms=1")) == "demo"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert find_model_path(FileModel(path=tmp_path)) == tmp_path
    with pytest.raises(ModelLoadError, match=r"missing\.gguf") as caught:
        find_model_path(FileModel(path=tmp_path / "missing.gguf"))
    assert caught.value.reason == "ModelNotFound"


def test_a_folder_that_the_engines_user_may_not_enter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(ModelLoadError, match=r"can't be read by user \d+: Permission denied") as caught:
        find_model_path(FileModel(path=tmp_path / "models"))
    assert caught.value.reason == "ModelNotReadable"


def test_a_builtin_model_without_its_package_says_how_to_install_it() -> None:
    missing = BuiltinModel(name="x", package="no_such_package", install_command="pip install x")
    with pytest.raises(ModelLoadError, match="pip install x"):
        find_model_path(missing)


def test_a_link_is_followed_and_a_folder_with_one_gguf_is_that_model(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "a.gguf").touch()
    link = tmp_path / "current"
    link.symlink_to(folder)
    assert find_model_path(FileModel(path=link)) == folder / "a.gguf"
    (folder / "config.json").touch()
    assert find_model_path(FileModel(path=link)) == folder


def test_the_builtin_model_is_installed_with_its_file() -> None:
    assert find_model_path(BUILTIN_MODELS["smollm2-135m"]).suffix == ".gguf"
