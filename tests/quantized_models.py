"""Tiny checkpoints in the formats of AWQ, GPTQ, fp8 and compressed-tensors, and the numbers they stand for.

The packers are this file's own, so that reading is checked against something else than itself.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tiny_models import save_model

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP = 32
BLOCK = (16, 32)
SHAPES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq-act-order": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
    "fp8": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-blocks": {"quant_method": "fp8", "weight_block_size": list(BLOCK)},
    "int8-channels": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
    },
    "packed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}}
        },
    },
}


def save_quantized(directory: Path, method: str, family: str = "Llama", **changes: Any) -> tuple[Path, Path]:
    """Write a tiny model quantised and, beside it, with the numbers that its weights stand for."""
    quantized, plain = directory / "quantized", directory / "plain"
    skipped = changes.pop("skipped", ())
    save_model(plain, family, **{**SHAPES, **changes})
    tensors = load_file(plain / "model.safetensors")
    packed: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj") or not name.endswith(".weight") or module.endswith(tuple(skipped)):
            packed[name] = weight
            continue
        parts, tensors[name] = PACKERS[method](weight.float())
        packed |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, plain / "model.safetensors")
    shutil.copytree(plain, quantized)
    save_file(packed, quantized / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = CONFIGS[method] | {"modules_to_not_convert": list(skipped) or None}
    (quantized / "config.json").write_text(json.dumps(config))
    return quantized, plain


Packed = tuple[dict[str, torch.Tensor], torch.Tensor]


def pack(numbers: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Pack `[rows, 8 n]` numbers below 16 into `[rows, n]` words."""
    eights = numbers.reshape(numbers.shape[0], -1, 8)[..., list(order)].long()
    words = torch.stack([eights[..., place] << (4 * place) for place in range(8)]).sum(0)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _nibbles(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise `[out, in]` to nibbles `[in, out]`, zeros and scales `[groups, out]`, and what they mean."""
    groups = weight.T.reshape(-1, GROUP, weight.shape[0])
    least, most = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scales = ((most - least) / 15).half()
    zeros = (-least / scales.float()).round().clamp(1, 15)
    wide = (groups / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15)
    values = (wide - zeros[:, None]) * scales.float()[:, None]
    shape = weight.shape[1], weight.shape[0]
    return wide.reshape(shape).int(), zeros.int(), scales, values.reshape(shape).T.contiguous()


def _awq(weight: torch.Tensor) -> Packed:
    nibbles, zeros, scales, values = _nibbles(weight)
    return {
        "qweight": pack(nibbles, AWQ_ORDER),
        "qzeros": pack(zeros, AWQ_ORDER),
        "scales": scales,
    }, values


def _gptq(weight: torch.Tensor) -> Packed:
    nibbles, zeros, scales, values = _nibbles(weight)
    return {
        "qweight": pack(nibbles.T).T,
        "qzeros": pack(zeros - 1),
        "scales": scales,
        "g_idx": (torch.arange(weight.shape[1]) // GROUP).int(),
        "bias": torch.zeros(weight.shape[0]),
    }, values


def _gptq_act_order(weight: torch.Tensor) -> Packed:
    """Quantise with the inputs dealt out to the groups in an order that depends on their number alone."""
    inputs = weight.shape[1]
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    nibbles, zeros, scales, values = _nibbles(weight[:, order])
    groups = torch.empty(inputs, dtype=torch.int32)
    groups[order] = (torch.arange(inputs) // GROUP).int()
    there, back = torch.empty_like(nibbles), torch.empty_like(values)
    there[order], back[:, order] = nibbles, values
    parts = {"qweight": pack(there.T).T, "qzeros": pack(zeros - 1), "scales": scales, "g_idx": groups}
    return parts, back


def _fp8(weight: torch.Tensor) -> Packed:
    scale = weight.abs().max() / 448
    numbers = (weight / scale).to(torch.float8_e4m3fn)
    parts = {"weight": numbers, "weight_scale": scale, "input_scale": torch.ones(())}
    return parts, numbers.float() * scale


def _fp8_blocks(weight: torch.Tensor) -> Packed:
    outputs, inputs = weight.shape
    blocks = weight.reshape(outputs // BLOCK[0], BLOCK[0], inputs // BLOCK[1], BLOCK[1])
    scales = blocks.abs().amax((1, 3)) / 448
    numbers = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    values = (numbers.float() * scales[:, None, :, None]).reshape(outputs, inputs)
    return {"weight": numbers.reshape(outputs, inputs), "weight_scale_inv": scales}, values


def _int8_channels(weight: torch.Tensor) -> Packed:
    scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    numbers = (weight / scales.float()).round().clamp(-127, 127).to(torch.int8)
    return {"weight": numbers, "weight_scale": scales}, numbers.float() * scales.float()


def _packed(weight: torch.Tensor) -> Packed:
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, -1, GROUP)
    scales = (groups.abs().amax(2) / 7).bfloat16()
    numbers = (groups / scales.float()[..., None]).round().clamp(-8, 7)
    values = (numbers * scales.float()[..., None]).reshape(outputs, inputs)
    parts = {
        "weight_packed": pack((numbers + 8).reshape(outputs, inputs).int()),
        "weight_scale": scales,
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    return parts, values


PACKERS = {
    "awq": _awq,
    "gptq": _gptq,
    "gptq-act-order": _gptq_act_order,
    "fp8": _fp8,
    "fp8-blocks": _fp8_blocks,
    "int8-channels": _int8_channels,
    "packed": _packed,
}
