"""The Llama family's tensors, read and fused layer by layer, of each matrix the part that a rank holds.

Knows names and where tensors go. Computes nothing with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.quantized import QuantizedMatrix, joined
from tidemill_engine.models.sharding import WHOLE, Shard
from tidemill_kernels.linear import PackedLinear

if TYPE_CHECKING:
    from tidemill_engine.models.config import LlamaConfig
    from tidemill_engine.models.weights import WeightSource

Linear = Callable[[torch.Tensor], torch.Tensor]
"""From `[num_tokens, in]` to `[num_tokens, out]`."""
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""From a weight `[out, in]` and a bias `[out]` to the product with them."""
MakeQuantized = Callable[[QuantizedMatrix, torch.Tensor | None], Linear]
"""From a matrix as a checkpoint holds it, and a bias `[out]`, to the product with them."""

_HARMLESS_TENSORS = ("rotary_emb.inv_freq", "lm_head.weight")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """In which dtype, on which device, in which part and how tensors are wanted.

    Without `make_quantized` quantised matrices become plain numbers as they are read.
    """

    dtype: torch.dtype
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shard: Shard = WHOLE
    make_linear: MakeLinear = PackedLinear
    make_quantized: MakeQuantized | None = None


@dataclass(frozen=True, kw_only=True)
class LlamaLayer:
    """One layer's weights; q, k and v are one matrix, gate and up another."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, kw_only=True)
class LlamaWeights:
    """All weights of one part of a model, whose shapes `config` gives; embedding `[vocab_size, hidden_size]`.

    The head has as many rows on each rank, those past the vocabulary zero.
    """

    config: LlamaConfig
    embedding: torch.Tensor
    layers: list[LlamaLayer]
    norm: torch.Tensor
    head: Linear


def load_llama_weights(
    source: WeightSource,
    placement: Placement,
    report: Callable[[int, int], None] = lambda _read, _total: None,
) -> LlamaWeights:
    """Read every weight, or its part, reporting after each layer; a tensor that nobody reads is an error."""
    local = placement.shard.of(source.config)
    loader = _LayerLoader(source, placement)
    embedding = loader.tensor("model.embed_tokens.weight")
    layers = []
    for index in range(source.config.num_layers):
        layers.append(loader.layer(index))
        report(source.read_bytes, source.total_bytes)
    norm = loader.tensor("model.norm.weight")
    head = embedding if local.has_tied_embeddings else loader.tensor("lm_head.weight")
    unread = [name for name in source.unread() if not name.endswith(_HARMLESS_TENSORS)]
    if unread:
        raise ModelLoadError(
            f"the model has tensors that this engine does not compute: {', '.join(unread[:5])}",
            reason="UnsupportedModel",
        )
    report(source.total_bytes, source.total_bytes)
    return LlamaWeights(
        config=local,
        embedding=embedding,
        layers=layers,
        norm=norm,
        head=placement.make_linear(loader.output_rows(head), None),
    )


def tensor_shape(config: LlamaConfig, name: str) -> tuple[int, ...]:
    """Return the shape of a whole model's tensor by its Hugging Face name."""
    *_, part, kind = name.split(".")
    hidden, mlp = config.hidden_size, config.intermediate_size
    others_than_norms = {
        "q_proj": (config.query_size, hidden),
        "k_proj": (config.kv_size, hidden),
        "v_proj": (config.kv_size, hidden),
        "o_proj": (hidden, config.query_size),
        "gate_proj": (mlp, hidden),
        "up_proj": (mlp, hidden),
        "down_proj": (hidden, mlp),
        "embed_tokens": (config.vocab_size, hidden),
        "lm_head": (config.vocab_size, hidden),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
    }
    shape = others_than_norms.get(part, (hidden,))
    return shape[:1] if kind == "bias" else shape


_ALL = slice(None)


def _times(span: slice, width: int) -> slice:
    """Return a span of heads as a span of rows."""
    return slice(span.start * width, span.stop * width)


class _LayerLoader:
    """Reads and fuses one layer's tensors at a time, of each matrix the part of one shard."""

    def __init__(self, source: WeightSource, placement: Placement) -> None:
        self._source = source
        self._placement = placement
        self._shard = shard = placement.shard
        config, dim = source.config, source.config.head_dim
        query, kv = _times(shard.query_heads(config), dim), _times(shard.kv_heads(config), dim)
        mlp = shard.mlp_columns(config)
        self._rows = {"q_proj": query, "k_proj": kv, "v_proj": kv, "gate_proj": mlp, "up_proj": mlp}
        self._columns = {"o_proj": query, "down_proj": mlp}

    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor, or the shard's part of it, in the model's dtype."""
        places = self._places(name)
        read = self._source.values(name)
        self._check(name, read.shape)
        values = torch.from_numpy(np.array(read[places[: read.ndim]]))
        if values.dtype == torch.uint16:
            values = values.view(torch.bfloat16)
        return values.to(self._placement.device, self._placement.dtype).contiguous()

    def output_rows(self, head: torch.Tensor) -> torch.Tensor:
        """Return the shard's rows of the output matrix, filled up with zeros to every rank's width."""
        count = len(head)
        mine = head[self._shard.vocabulary(count)]
        missing = self._shard.vocabulary_width(count) - len(mine)
        return mine if missing == 0 else torch.nn.functional.pad(mine, (0, 0, 0, missing))

    def layer(self, index: int) -> LlamaLayer:
        """Read one layer."""
        config = self._source.config
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        qkv = tuple(attention + part for part in ("q_proj", "k_proj", "v_proj"))
        return LlamaLayer(
            input_norm=self.tensor(prefix + "input_layernorm.weight"),
            qkv=self._fused(qkv, has_bias=config.has_qkv_bias),
            query_norm=self.tensor(attention + "q_norm.weight") if config.has_qk_norm else None,
            key_norm=self.tensor(attention + "k_norm.weight") if config.has_qk_norm else None,
            out=self._fused((attention + "o_proj",)),
            mlp_norm=self.tensor(prefix + "post_attention_layernorm.weight"),
            gate_up=self._fused((prefix + "mlp.gate_proj", prefix + "mlp.up_proj")),
            down=self._fused((prefix + "mlp.down_proj",)),
        )

    def _fused(self, names: tuple[str, ...], *, has_bias: bool = False) -> Linear:
        """Read matrices that share their input and put them above one another."""
        biases = [self.tensor(name + ".bias") for name in names] if has_bias else [None for _ in names]
        weights = [self._quantized(name + ".weight") or self.tensor(name + ".weight") for name in names]
        plain = [weight for weight in weights if isinstance(weight, torch.Tensor)]
        stored = [weight for weight in weights if not isinstance(weight, torch.Tensor)]
        together = joined(stored) if not plain else None
        if stored and together is None:
            every = zip(weights, biases, strict=True)
            return _SideBySide([self._linear(weight, bias) for weight, bias in every])
        bias = torch.cat([bias for bias in biases if bias is not None]) if has_bias else None
        return self._linear(torch.cat(plain) if together is None else together, bias)

    def _quantized(self, name: str) -> QuantizedMatrix | None:
        """Read the shard's part of a matrix as the files have it, where such can be computed with."""
        if self._placement.make_quantized is None:
            return None
        matrix = self._source.quantized(name)
        if matrix is None:
            return None
        self._check(name, matrix.shape)
        return matrix.part(*self._places(name))

    def _linear(self, weight: torch.Tensor | QuantizedMatrix, bias: torch.Tensor | None) -> Linear:
        if isinstance(weight, torch.Tensor):
            return self._placement.make_linear(weight, bias)
        if self._placement.make_quantized is None:
            raise TypeError("nobody here computes with a quantised matrix")
        return self._placement.make_quantized(weight, bias)

    def _check(self, name: str, found: tuple[int, ...]) -> None:
        """Raise unless a tensor has its shape: kernels read as many numbers as the configuration says."""
        wanted = tensor_shape(self._source.config, name)
        if found != wanted:
            raise ModelLoadError(
                f"tensor {name} is of shape {found}, not {wanted} as the model's configuration has it"
            )

    def _places(self, name: str) -> tuple[slice, slice]:
        """Return the shard's outputs and inputs of a matrix."""
        part = name.split(".")[-2]
        return self._rows.get(part, _ALL), self._columns.get(part, _ALL)


class _SideBySide:
    """Matrices of one input that can't be one, since they are held in different ways."""

    def __init__(self, parts: list[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return all outputs, one part's after another's: `[num_tokens, out]`."""
        return torch.cat([part(x) for part in self._parts], dim=1)
