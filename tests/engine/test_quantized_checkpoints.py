"""Checkpoints of 4 and 8 bits: read as what they stand for, served as they are, and refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from device_runners import load_on_host
from quantized_models import CONFIGS, save_quantized
from served_tokens import assert_same, entries, load_on_cpu, serve
from tidemill_engine.config import Quantization
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.quantization import format_of
from tidemill_engine.models.quantized import Int4Matrix, ScaledMatrix, float8_values, joined
from tidemill_engine.models.weights import open_weights
from tidemill_engine.runner.gpu.device import HostDevice
from tidemill_engine.runner.gpu.linears import CheckpointLinears, linear_maker
from tidemill_kernels.paged_attention.launch import Gpu
from tiny_models import prompts_of, save_model

METHODS = tuple(CONFIGS)
UP = "model.layers.1.mlp.up_proj"
LENGTHS = (3, 13)


@pytest.mark.parametrize("method", METHODS)
def test_a_matrix_is_read_as_the_numbers_that_it_stands_for(tmp_path: Path, method: str) -> None:
    quantized, plain = save_quantized(tmp_path, method)
    wanted = load_file(plain / "model.safetensors")
    source = open_weights(quantized)
    for name, weight in wanted.items():
        np.testing.assert_allclose(source.values(name), weight.float().numpy(), rtol=1e-6)
    assert source.unread() == []


def test_float8_is_read_as_torch_does() -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(float8_values(bits.numpy()), bits.view(torch.float8_e4m3fn).float().numpy())


@pytest.mark.parametrize("method", METHODS)
def test_parts_of_a_matrix_stand_for_parts_of_its_numbers(tmp_path: Path, method: str) -> None:
    matrix = open_weights(save_quantized(tmp_path, method)[0]).quantized(UP + ".weight")
    assert matrix is not None
    whole, outputs = matrix.values(), slice(48, 96)
    inputs = slice(None) if method == "gptq-act-order" else slice(16, 48)
    np.testing.assert_array_equal(matrix.part(outputs, inputs).values(), whole[outputs, inputs])
    parts = [matrix.part(slice(0, 32), slice(None)), matrix.part(slice(32, None), slice(None))]
    again = joined(parts)
    assert again is not None
    np.testing.assert_array_equal(again.values(), whole)


def test_matrices_of_different_kinds_are_not_joined(tmp_path: Path) -> None:
    four = open_weights(save_quantized(tmp_path / "a", "awq")[0]).quantized(UP + ".weight")
    eight = open_weights(save_quantized(tmp_path / "b", "fp8")[0]).quantized(UP + ".weight")
    assert isinstance(four, Int4Matrix)
    assert isinstance(eight, ScaledMatrix)
    assert joined([four, eight]) is None


def test_a_word_of_eight_is_not_cut(tmp_path: Path) -> None:
    matrix = open_weights(save_quantized(tmp_path, "awq")[0]).quantized(UP + ".weight")
    assert matrix is not None
    with pytest.raises(ModelLoadError, match="outputs 0-12"):
        matrix.part(slice(0, 12), slice(None))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_and_a_cpu_serve_a_checkpoint_as_the_numbers_that_it_stands_for(
    tmp_path: Path, method: str
) -> None:
    quantized, plain = save_quantized(tmp_path, method)
    prompts = prompts_of(*LENGTHS)
    wanted = serve(load_on_cpu(plain), prompts, depth=1)
    assert_same(serve(load_on_host(quantized), prompts), wanted, len(prompts))
    assert_same(serve(load_on_cpu(quantized), prompts, depth=1), wanted, len(prompts))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["awq", "fp8"])
def test_modules_that_are_not_converted_and_biases_are_served_beside_others(
    tmp_path: Path, method: str
) -> None:
    quantized, plain = save_quantized(tmp_path, method, family="Qwen2", skipped=("v_proj", "down_proj"))
    prompts = prompts_of(*LENGTHS)
    wanted = serve(load_on_cpu(plain), prompts, depth=1)
    assert_same(serve(load_on_host(quantized, has_graphs=True), prompts), wanted, len(prompts))


def test_weights_are_held_on_a_device_as_they_are_stored(tmp_path: Path) -> None:
    matrix = open_weights(save_quantized(tmp_path, "awq")[0]).quantized(UP + ".weight")
    assert isinstance(matrix, Int4Matrix)
    held = CheckpointLinears(torch.device("cpu"), torch.float32, HostDevice.gpu).make(matrix, None)
    assert held.packed.words.numpy().tobytes() == matrix.words.tobytes()  # type: ignore[attr-defined]


def test_an_older_gpu_computes_fp8_checkpoints_in_the_models_dtype(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    matrix = open_weights(save_quantized(tmp_path, "fp8")[0]).quantized(UP + ".weight")
    assert matrix is not None
    old = Gpu(num_multiprocessors=4, capability=80)
    x = torch.randn(3, matrix.shape[1])
    found = CheckpointLinears(torch.device("cpu"), torch.float32, old).make(matrix, None)(x)
    torch.testing.assert_close(found, x @ torch.from_numpy(matrix.values()).T)
    assert "no fp8" in caplog.text
    with pytest.raises(ModelLoadError, match=r"compute capability 8\.9, not 8\.0"):
        linear_maker("fp8", old)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes'"),
        ({"bits": 8}, "bits 8 is not supported; supported: 4"),
        ({"version": "gemv"}, "version 'gemv'"),
        ({"group_size": 48}, "group_size 48"),
        ({"zero_point": False}, "zero_point False"),
    ],
)
def test_what_is_not_computed_is_refused_with_what_is(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words) as refused:
        format_of({"quantization_config": CONFIGS["awq"] | said})
    assert refused.value.reason == "UnsupportedModel"


@pytest.mark.parametrize(
    ("method", "said", "words"),
    [
        ("gptq", {"checkpoint_format": "gptq_v2"}, "gptq_v2"),
        ("gptq", {"format": "gptq_v2"}, "format 'gptq_v2'"),
        ("gptq", {"checkpoint_format": "gptq", "format": "GPTQ_V2"}, "format 'gptq_v2'"),
        ("awq", {"version": None, "format": "gemv"}, "format 'gemv'"),
        ("gptq", {"dynamic": {"x": {}}}, "dynamic"),
        ("fp8", {"fmt": "e5m2"}, "e5m2"),
        ("fp8", {"weight_block_size": ["a", "b"]}, "weight_block_size .* two sizes"),
        ("fp8", {"weight_block_size": [128, 0]}, "weight_block_size .* two sizes"),
        ("packed", {"format": "marlin-24"}, "marlin-24 with 4 bits of int by group"),
        ("packed", {"config_groups": {}}, "one group"),
    ],
)
def test_other_methods_refuse_too(method: str, said: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        format_of({"quantization_config": CONFIGS[method] | said})


@pytest.mark.parametrize("sizes", [None, "128x128", [128.0, 128]], ids=str)
def test_blocks_without_sizes_are_refused(sizes: object) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": sizes}
    said = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"a": {"weights": weights}},
    }
    with pytest.raises(ModelLoadError, match=r"block_structure .* two sizes"):
        format_of({"quantization_config": said})


def replace_tensors(directory: Path, **parts: torch.Tensor) -> None:
    """Put other tensors in the place of one matrix's."""
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(UP)}
    save_file(
        kept | {f"{UP}.{part}": tensor for part, tensor in parts.items()}, directory / "model.safetensors"
    )


def test_blocks_need_not_divide_a_matrix(tmp_path: Path) -> None:
    quantized, _ = save_quantized(tmp_path, "fp8-blocks")
    numbers, scales = torch.randn(24, 84).to(torch.float8_e4m3fn), torch.rand(2, 3) + 0.5
    replace_tensors(quantized, weight=numbers, weight_scale_inv=scales)
    wide = scales.repeat_interleave(16, 0)[:24].repeat_interleave(32, 1)[:, :84]
    values, x = numbers.float() * wide, torch.randn(3, 84)
    matrix = open_weights(quantized).quantized(UP + ".weight")
    assert matrix is not None
    there = CheckpointLinears(torch.device("cpu"), torch.float32, HostDevice.gpu)
    for outputs, inputs in ((slice(0, 24), slice(0, 84)), (slice(12, 24), slice(32, 84))):
        part = matrix.part(outputs, inputs)
        np.testing.assert_array_equal(part.values(), values[outputs, inputs].numpy())
        wanted = x[:, inputs] @ values[outputs, inputs].T
        torch.testing.assert_close(there.make(part, None)(x[:, inputs].contiguous()), wanted)


def test_outputs_that_fill_no_word_are_an_error(tmp_path: Path) -> None:
    quantized, _ = save_quantized(tmp_path, "gptq")
    replace_tensors(
        quantized,
        qweight=torch.zeros(8, 12, dtype=torch.int32),
        qzeros=torch.zeros(2, 1, dtype=torch.int32),
        scales=torch.ones(2, 12).half(),
    )
    with pytest.raises(ModelLoadError, match="12 outputs, eight to a word"):
        open_weights(quantized).quantized(UP + ".weight")


@pytest.mark.parametrize(("method", "part"), [("gptq", "qweight"), ("awq", "scales"), ("fp8", "weight")])
def test_a_part_without_two_sides_is_an_error(tmp_path: Path, method: str, part: str) -> None:
    quantized, _ = save_quantized(tmp_path, method)
    tensors = load_file(quantized / "model.safetensors")
    flat = {f"{UP}.{part}": tensors[f"{UP}.{part}"].flatten()}
    save_file(tensors | flat, quantized / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"{part} of shape .* no part of a quantised matrix"):
        open_weights(quantized).quantized(UP + ".weight")


@pytest.mark.parametrize("kind", ["quantized", "plain"])
def test_a_matrix_of_another_shape_than_the_configuration_says_is_an_error(tmp_path: Path, kind: str) -> None:
    save_quantized(tmp_path, "awq")
    config = json.loads((tmp_path / kind / "config.json").read_text())
    (tmp_path / kind / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ModelLoadError, match=r"gate_proj.weight is of shape \(96, 64\), not \(128, 64\)"):
        load_on_host(tmp_path / kind)


def test_inputs_in_another_order_are_not_divided(tmp_path: Path) -> None:
    matrix = open_weights(save_quantized(tmp_path, "gptq-act-order")[0]).quantized(UP + ".weight")
    assert matrix is not None
    with pytest.raises(ModelLoadError, match="desc_act"):
        matrix.part(slice(None), slice(0, 32))


def test_inputs_in_no_groups_are_an_error(tmp_path: Path) -> None:
    quantized, _ = save_quantized(tmp_path, "gptq")
    tensors = load_file(quantized / "model.safetensors")
    tensors[UP + ".g_idx"] = torch.zeros_like(tensors[UP + ".g_idx"])
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(ModelLoadError, match="groups of 32"):
        open_weights(quantized).values(UP + ".weight")


def test_scales_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    quantized, _ = save_quantized(tmp_path, "awq")
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"]["group_size"] = 16
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="groups of 16"):
        open_weights(quantized).values(UP + ".weight")


@pytest.mark.slow
@pytest.mark.parametrize("quantization", [None, "int4"])
def test_the_kernels_for_cpus_serve_the_numbers_that_a_checkpoint_stands_for(
    tmp_path: Path, quantization: Quantization | None
) -> None:
    quantized, plain = save_quantized(tmp_path, "awq")
    prompts = prompts_of(*LENGTHS)
    model: dict[str, Any] = {"dtype": "bfloat16", "quantization": quantization}
    found, wanted = (serve(load_on_cpu(path, **model), prompts, depth=1) for path in (quantized, plain))
    for index in range(len(prompts)):
        assert entries(found, str(index)) == entries(wanted, str(index))


def test_a_gpu_that_is_too_old_is_refused(tmp_path: Path) -> None:
    class Old(HostDevice):
        gpu = Gpu(num_multiprocessors=40, capability=75)

    save_model(tmp_path, "Llama")
    with pytest.raises(ModelLoadError, match=r"before compute capability 8\.0 .* has 7\.5"):
        load_on_host(tmp_path, device=Old())


def test_a_quantised_checkpoint_is_not_quantised_again_on_a_gpu(tmp_path: Path) -> None:
    quantized, _ = save_quantized(tmp_path, "awq")
    with pytest.raises(ModelLoadError, match="quantised already, as awq"):
        load_on_host(quantized, dtype="bfloat16", quantization="int8")
