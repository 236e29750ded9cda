"""Weights of the Llama family into the C++ engine, tensor by tensor.

Knows parts and their names. Does not know steps; packs nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.rotary import frequencies
from tidemill_kernels.native.engine import EngineShape, NativeEngine, Part, StoredTensor, stored_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_engine.models.config import LlamaConfig
    from tidemill_engine.models.weights import StoredWeights

_MATRICES = (
    *(f"self_attn.{name}_proj.weight" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
)
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
HARMLESS_TENSORS = ("rotary_emb.inv_freq", "lm_head.weight")


def shape_of(
    config: LlamaConfig, *, block_size: int, max_positions: int, weights: str = "bf16", head: str = "bf16"
) -> EngineShape:
    """Return what the C++ engine is told of a model."""
    return EngineShape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_positions=max_positions,
        block_size=block_size,
        rms_norm_eps=config.rms_norm_eps,
        has_qkv_bias=config.has_qkv_bias,
        has_qk_norm=config.has_qk_norm,
        weights=weights,
        head=head,
    )


def held_formats(source: StoredWeights, quantization: str | None, memory_bytes: int) -> tuple[str, str]:
    """Return how the layers' matrices and the output matrix are held, names of `FORMATS`.

    A quantised file's own blocks stay as they are where all layers have the same and bfloat16 would take
    over half of the memory: that gives bit for bit the same results, but each step widens them anew. Under
    int4 the output matrix is int8.
    """
    if quantization is not None:
        return quantization, "int8" if quantization == "int4" else quantization
    config = source.config
    if bfloat16_bytes(config) <= memory_bytes // 2:
        return "bf16", "bf16"
    names = [f"model.layers.{index}.{name}" for index in range(config.num_layers) for name in _MATRICES]
    kinds = {source.block_kind(name) for name in names}
    head = source.block_kind(_EMBEDDING if config.has_tied_embeddings else _HEAD)
    return (kinds.pop() if len(kinds) == 1 else None) or "bf16", head or "bf16"


def bfloat16_bytes(config: LlamaConfig) -> int:
    """Return what all matrices take as bfloat16, the embedding among them."""
    layer = config.hidden_size * (2 * config.query_size + 2 * config.kv_size + 3 * config.intermediate_size)
    return 2 * (config.num_layers * layer + 2 * config.vocab_size * config.hidden_size)


def load_weights(engine: NativeEngine, source: StoredWeights, report: Callable[[int, int], None]) -> None:
    """Read every part from the source and pack it, reporting after each layer."""
    config = source.config
    for index in range(config.num_layers):
        _load_layer(engine, source, index)
        report(source.read_bytes, source.total_bytes)
    embedding = _stored(source, _EMBEDDING)
    engine.set(Part.EMBEDDING, [embedding])
    engine.set(Part.HEAD, [embedding if config.has_tied_embeddings else _stored(source, _HEAD)])
    engine.set(Part.FINAL_NORM, source.values("model.norm.weight"))
    _set_angles(engine, config)
    unread = [name for name in source.unread() if not name.endswith(HARMLESS_TENSORS)]
    if unread:
        raise ModelLoadError(
            f"the model has tensors that this engine does not compute: {', '.join(unread[:5])}",
            reason="UnsupportedModel",
        )
    report(source.total_bytes, source.total_bytes)


def _load_layer(engine: NativeEngine, source: StoredWeights, index: int) -> None:
    """Read one layer; q, k and v become one matrix, gate and up another."""
    config = source.config
    prefix = f"model.layers.{index}."
    attention = prefix + "self_attn."
    qkv = tuple(attention + part for part in ("q_proj", "k_proj", "v_proj"))
    engine.set(Part.INPUT_NORM, source.values(prefix + "input_layernorm.weight"), index)
    engine.set(Part.QKV, [_stored(source, f"{name}.weight") for name in qkv], index)
    if config.has_qkv_bias:
        engine.set(Part.QKV_BIAS, np.concatenate([source.values(f"{name}.bias") for name in qkv]), index)
    if config.has_qk_norm:
        engine.set(Part.QUERY_NORM, source.values(attention + "q_norm.weight"), index)
        engine.set(Part.KEY_NORM, source.values(attention + "k_norm.weight"), index)
    engine.set(Part.OUT, [_stored(source, attention + "o_proj.weight")], index)
    engine.set(Part.MLP_NORM, source.values(prefix + "post_attention_layernorm.weight"), index)
    gate_up = (prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight")
    engine.set(Part.GATE_UP, [_stored(source, name) for name in gate_up], index)
    engine.set(Part.DOWN, [_stored(source, prefix + "mlp.down_proj.weight")], index)


def _stored(source: StoredWeights, name: str) -> StoredTensor:
    """Read a matrix: its blocks where the kernels take them, else its values."""
    if source.block_kind(name) is None:
        return stored_array(source.values(name))
    blocks = source.blocks(name)
    return StoredTensor(
        data=blocks.data,
        kind=blocks.kind,
        rows=len(blocks.data),
        columns=blocks.columns,
        interleaved_heads=blocks.interleaved_heads,
    )


def _set_angles(engine: NativeEngine, config: LlamaConfig) -> None:
    """Compute the cosines and sines of every position, in float32 as transformers does."""
    angles = np.outer(np.arange(engine.shape.max_positions, dtype=np.float32), frequencies(config))
    engine.set(Part.COSINES, np.cos(angles, dtype=np.float32))
    engine.set(Part.SINES, np.sin(angles, dtype=np.float32))
