"""What a config.json says of how its checkpoint is quantised, and where each method keeps a matrix.

Knows the methods' fields and tensor names. Which matrices are quantised the files tell: one whose plain
weight is there is not, whatever `modules_to_not_convert` or `ignore` say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tidemill_engine.errors import ModelLoadError

Method = Literal["awq", "gptq", "scaled", "packed"]
_BITS = 4


@dataclass(frozen=True, kw_only=True)
class CheckpointFormat:
    """How matrices of a checkpoint are stored.

    name: what config.json calls it. method: `awq` and `gptq` as those have it; `scaled`: 8 bits with scales;
    `packed`: four bits as compressed-tensors packs them. group_size: inputs with one scale, None for all.
    block: for `scaled`, the outputs and inputs that share a scale.
    """

    name: str
    method: Method
    group_size: int | None = None
    block: tuple[int, int] | None = None


def format_of(fields: dict[str, Any]) -> CheckpointFormat | None:
    """Read `quantization_config` of a config.json; None without one. What can't be computed is refused."""
    said = fields.get("quantization_config") or fields.get("compression_config")
    if not said:
        return None
    if not isinstance(said, dict):
        raise ModelLoadError("quantization_config is not an object", reason="UnsupportedModel")
    method = str(said.get("quant_method", "")).lower()
    readers = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "compressed-tensors": _compressed}
    if method not in readers:
        raise _unsupported("quant_method", method, ", ".join(readers))
    return readers[method](said)


def _awq(said: dict[str, Any]) -> CheckpointFormat:
    _want(said, ("bits", "w_bit"), _BITS, "4")
    _want(said, ("version", "format"), "gemm", "gemm", default="gemm")
    _want(said, ("zero_point",), True, "true", default=True)
    size = _group_size(said.get("group_size", said.get("q_group_size", 128)))
    return CheckpointFormat(name="awq", method="awq", group_size=size)


def _gptq(said: dict[str, Any]) -> CheckpointFormat:
    _want(said, ("bits",), _BITS, "4")
    _want(said, ("checkpoint_format", "format"), "gptq", "gptq", default="gptq")
    if said.get("dynamic"):
        raise _unsupported("dynamic", said["dynamic"], "one way for all matrices")
    return CheckpointFormat(name="gptq", method="gptq", group_size=_group_size(said.get("group_size", 128)))


def _fp8(said: dict[str, Any]) -> CheckpointFormat:
    _want(said, ("fmt",), "e4m3", "e4m3", default="e4m3")
    sizes = said.get("weight_block_size")
    block = None if sizes is None else _block("weight_block_size", sizes)
    return CheckpointFormat(name="fp8", method="scaled", block=block)


def _compressed(said: dict[str, Any]) -> CheckpointFormat:
    name, groups = "compressed-tensors", said.get("config_groups") or {}
    if len(groups) != 1:
        raise _unsupported("config_groups", list(groups), "one group for all matrices")
    (group,) = groups.values()
    weights = group.get("weights") or {}
    if not weights.get("symmetric", True):
        raise _unsupported("weights.symmetric", False, "true")
    kind = (weights.get("type"), weights.get("num_bits"))
    strategy = weights.get("strategy", "tensor")
    stored = said.get("format")
    if stored in {"float-quantized", "naive-quantized", "int-quantized"} and kind in {
        ("float", 8),
        ("int", 8),
    }:
        if strategy not in {"tensor", "channel", "block"}:
            raise _unsupported("weights.strategy", strategy, "tensor, channel or block")
        key = "block_structure"
        block = _block(f"weights.{key}", weights.get(key)) if strategy == "block" else None
        return CheckpointFormat(name=name, method="scaled", block=block)
    if stored == "pack-quantized" and kind == ("int", _BITS) and strategy in {"group", "channel"}:
        size = _group_size(weights.get("group_size")) if strategy == "group" else None
        return CheckpointFormat(name=name, method="packed", group_size=size)
    raise _unsupported(
        "format",
        f"{stored} with {kind[1]} bits of {kind[0]} by {strategy}",
        "float-quantized, int-quantized (8 bits) or pack-quantized (4 bits by group or channel)",
    )


def _block(key: str, value: object) -> tuple[int, int]:
    """Return the outputs and inputs that share a scale."""
    if isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value):
        return value[0], value[1]
    raise _unsupported(key, value, "two sizes")


def _group_size(value: object) -> int | None:
    """Return a group's inputs; None for -1, which means all of them."""
    if value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 16 or value & (value - 1):
        raise _unsupported("group_size", value, "-1 or a power of two of at least 16")
    return value


_MISSING = object()


def _want(
    said: dict[str, Any], keys: tuple[str, ...], wanted: object, words: str, default: object = _MISSING
) -> None:
    """Refuse another value than the one that is computed here, by whichever of its names it is said."""
    given = {key: said[key] for key in keys if said.get(key) is not None}
    for key, value in (given or {keys[0]: default}).items():
        found = value.lower() if isinstance(value, str) else value
        if found != wanted:
            raise _unsupported(key, None if found is _MISSING else found, words)


def _unsupported(key: str, value: object, wanted: str) -> ModelLoadError:
    return ModelLoadError(
        f"quantization_config: {key} {value!r} is not supported; supported: {wanted}",
        reason="UnsupportedModel",
    )
