from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from tidemill_engine.config import CacheConfig, CoreConfig, DeviceConfig, ModelConfig
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.runner.load import load_runner
from tidemill_engine.runner.native_cpu import find_kernels


def failure(uri: str, **cache: Any) -> ModelLoadError:
    return failure_of(ModelConfig(uri=uri), **cache)


def failure_of(model: ModelConfig, **cache: Any) -> ModelLoadError:
    config = CoreConfig(model=model, cache=CacheConfig(**cache))
    with pytest.raises(ModelLoadError) as caught:
        load_runner(config, lambda _read, _total: None)
    return caught.value


def test_an_unknown_scheme_is_a_configuration_error() -> None:
    error = failure("ftp://x")
    assert error.reason == "InvalidConfig"
    assert "builtin://" in error.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    error = failure(f"file://{tmp_path}/none.gguf")
    assert error.reason == "ModelNotFound"
    assert "none.gguf" in error.message


def test_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_bytes(b"this is no model at all, whatever its name says")
    error = failure(f"file://{tmp_path}/junk.gguf")
    assert error.reason == "ModelLoadFailed"
    assert "junk.gguf" in error.message


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = CoreConfig(model=ModelConfig(uri="builtin://smollm2-135m"), device=DeviceConfig(name="cuda"))
    with pytest.raises(ModelLoadError, match="torch sees no GPU") as caught:
        load_runner(config, lambda _read, _total: None)
    assert caught.value.reason == "InvalidConfig"


def test_a_cpu_with_a_broken_driver_computes_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    from tidemill_engine.runner.gpu.load import has_gpu

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not has_gpu(CoreConfig(model=ModelConfig(uri="builtin://smollm2-135m")))
    assert "the CPU computes" in caplog.text


@pytest.mark.parametrize(
    ("model", "cache", "device", "message"),
    [
        ({}, {}, {"attention_backend": "flash-attn"}, "flash-attn computes on a GPU"),
        ({}, {}, {"attention_backend": "flashinfer"}, "flashinfer computes on a GPU"),
        ({"kernels": "avx2"}, {}, {"tensor_parallel_size": 3}, "avx2 do not divide a model"),
        ({"quantization": "fp8"}, {}, {}, "fp8 is for GPUs"),
        ({}, {"dtype": "int8"}, {}, "--kv-cache-dtype int8 is for GPUs"),
    ],
)
def test_what_a_cpu_would_not_do_as_asked_is_refused(
    model: dict[str, Any], cache: dict[str, Any], device: dict[str, Any], message: str
) -> None:
    config = CoreConfig(
        model=ModelConfig(uri="builtin://smollm2-135m", **model),
        cache=CacheConfig(**cache),
        device=DeviceConfig(name="cpu", **device),
    )
    with pytest.raises(ModelLoadError, match=message) as caught:
        load_runner(config, lambda _read, _total: None)
    assert caught.value.reason == "InvalidConfig"


def test_without_torch_a_real_model_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidemill_engine.runner.torch_cpu", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    error = failure_of(ModelConfig(uri="builtin://smollm2-135m", kernels="torch"))
    assert "torch" in error.message
    assert "not installed" in error.message


def test_without_a_compiler_torch_computes_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TIDEMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tidemill_kernels.native.build.PREBUILT", tmp_path / "none")
    with caplog.at_level(logging.WARNING):
        assert find_kernels(CoreConfig(model=ModelConfig(uri="builtin://smollm2-135m"))) is None
    assert len(caplog.records) == 1
    assert "no C++ compiler was found" in caplog.text
    assert "torch computes" in caplog.text


def test_quantization_without_the_kernels_is_refused_not_ignored() -> None:
    error = failure_of(ModelConfig(uri="builtin://smollm2-135m", kernels="torch", quantization="int8"))
    assert error.reason == "InvalidConfig"
    assert "int8" in error.message


def test_kernels_that_this_cpu_has_not_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill_kernels.native.cpu.platform.machine", lambda: "riscv64")
    error = failure_of(ModelConfig(uri="builtin://smollm2-135m", kernels="amx"))
    assert "amx" in error.message


@pytest.mark.parametrize(
    "refusal",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=str,
)
def test_memory_that_is_refused_is_called_so(refusal: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr("tidemill_engine.runner.load.load_sim_runner", refuse)
    assert failure("sim://x").reason == "OutOfMemory"


def test_any_other_error_keeps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the wheel is stuck")

    monkeypatch.setattr("tidemill_engine.runner.load.load_sim_runner", fail)
    error = failure("sim://x")
    assert error.reason == "ModelLoadFailed"
    assert "the wheel is stuck" in error.message
