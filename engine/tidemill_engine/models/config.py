"""What a Llama-family model looks like, as one frozen value read from a GGUF head or a config.json.

Knows the keys of both formats. Anything it does not know how to compute is refused here, by name, not
ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.rotary import divisors_from_hf

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Shapes and constants of one model."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    rope_theta: float
    rms_norm_eps: float
    has_tied_embeddings: bool
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    rope_divisors: tuple[float, ...] = ()
    """What each frequency of the rotary embeddings is divided by; empty: none is scaled."""
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(
                f"{self.num_heads} query heads can't share {self.num_kv_heads} key/value heads evenly"
            )
        if self.head_dim % 2:
            raise ModelLoadError(f"rotary embeddings need an even head size, not {self.head_dim}")
        for name in ("rope_theta", "rms_norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ModelLoadError(f"{name} must be a number above 0, not {getattr(self, name)}")
        if not all(0 < divisor < math.inf for divisor in self.rope_divisors):
            raise ModelLoadError("a scale of the rotary embeddings is not a number above 0")

    @property
    def query_size(self) -> int:
        """Return the width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Return the width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim


def config_from_gguf(metadata: dict[str, Any], tensor_names: frozenset[str]) -> LlamaConfig:
    """Read the shapes from a GGUF file's keys."""
    architecture = metadata.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise ModelLoadError(
            f"GGUF architecture {architecture!r} is not supported; supported are "
            f"{', '.join(GGUF_ARCHITECTURES)}",
            reason="UnsupportedModel",
        )
    keys = _Keys(metadata, f"{architecture}.")
    _refuse_gguf_extras(keys)
    num_heads = keys.number("attention.head_count")
    hidden_size = keys.number("embedding_length")
    head_dim = keys.number("attention.key_length", hidden_size // num_heads)
    vocab = metadata.get("tokenizer.ggml.tokens") or ()
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    more_eos = metadata.get("tokenizer.ggml.eot_token_id")
    return LlamaConfig(
        num_layers=keys.number("block_count"),
        hidden_size=hidden_size,
        intermediate_size=keys.number("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.number("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=keys.number("vocab_size", len(vocab) or None),
        max_model_len=keys.number("context_length"),
        rope_theta=float(keys.get("rope.freq_base", 10000.0)),
        rms_norm_eps=float(keys.get("attention.layer_norm_rms_epsilon")),
        has_tied_embeddings="output.weight" not in tensor_names,
        has_qkv_bias="blk.0.attn_q.bias" in tensor_names,
        has_qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
        rope_divisors=_gguf_divisors(keys, head_dim),
        eos_token_ids=frozenset(int(token) for token in (eos, more_eos) if token is not None),
    )


def _gguf_divisors(keys: _Keys, head_dim: int) -> tuple[float, ...]:
    """Read how rotary embeddings are scaled; Llama 3.1's divisors are a tensor, read by who has the file.

    As in llama.cpp a factor without a type is a linear one, older files have it by another name, and a file
    without one scales nothing.
    """
    kind = keys.get("rope.scaling.type", "linear")
    if kind == "none":
        return ()
    if kind != "linear":
        raise ModelLoadError(
            f"rotary embeddings of type {kind!r} are not supported yet", reason="UnsupportedModel"
        )
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0))
    return divisors_from_hf({"rope_type": kind, "factor": factor}, head_dim, 1.0) if factor else ()


def _refuse_gguf_extras(keys: _Keys) -> None:
    """Refuse what would change the numbers and is not computed here."""
    if keys.get("expert_count", 0):
        raise ModelLoadError("mixtures of experts are not supported yet", reason="UnsupportedModel")
    rotated = keys.get("rope.dimension_count", None)
    head_dim = keys.get("attention.key_length", None)
    width = head_dim or keys.number("embedding_length") // keys.number("attention.head_count")
    if rotated not in {None, width}:
        raise ModelLoadError(
            f"partial rotary embeddings ({rotated} of {width}) are not supported yet",
            reason="UnsupportedModel",
        )


def config_from_hf(fields: dict[str, Any], tensor_names: frozenset[str]) -> LlamaConfig:
    """Read the shapes from a config.json."""
    architectures = fields.get("architectures") or [None]
    if architectures[0] not in HF_ARCHITECTURES:
        raise ModelLoadError(
            f"architecture {architectures[0]!r} is not supported; supported are "
            f"{', '.join(HF_ARCHITECTURES)}",
            reason="UnsupportedModel",
        )
    keys = _Keys(fields, "")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelLoadError(f"what scales the rotary embeddings must be an object, not {rope!r}")
    _refuse_hf_extras(fields, rope)
    num_heads = keys.number("num_attention_heads")
    hidden_size = keys.number("hidden_size")
    head_dim = keys.number("head_dim", hidden_size // num_heads)
    theta = float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0)
    return LlamaConfig(
        num_layers=keys.number("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=keys.number("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=keys.number("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=keys.number("vocab_size"),
        max_model_len=_hf_context(fields, keys.number("max_position_embeddings")),
        rope_theta=theta,
        rms_norm_eps=float(keys.get("rms_norm_eps")),
        has_tied_embeddings=bool(fields.get("tie_word_embeddings")),
        has_qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensor_names,
        has_qk_norm="model.layers.0.self_attn.q_norm.weight" in tensor_names,
        rope_divisors=divisors_from_hf(rope, head_dim, theta),
        eos_token_ids=_token_ids(fields.get("eos_token_id")),
    )


def _refuse_hf_extras(fields: dict[str, Any], rope: dict[str, Any]) -> None:
    """Refuse what would change the numbers and is not computed here."""
    if any((said.get("partial_rotary_factor") or 1.0) != 1.0 for said in (fields, rope)):
        raise ModelLoadError("partial rotary embeddings are not supported yet", reason="UnsupportedModel")
    if fields.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(
            f"activation {fields['hidden_act']!r} is not supported", reason="UnsupportedModel"
        )


def _hf_context(fields: dict[str, Any], max_positions: int) -> int:
    """Return the longest sequence: within a sliding window the window itself, where it masks nothing."""
    window = fields.get("sliding_window")
    if window is None or not fields.get("use_sliding_window", True):
        return max_positions
    return min(max_positions, _Keys(fields, "").number("sliding_window"))


def _token_ids(value: object) -> frozenset[int]:
    """Return one token id, or several, or none as a set."""
    if value is None:
        return frozenset()
    found = value if isinstance(value, list) else [value]
    if not all(type(token) is int and token >= 0 for token in found):
        raise ModelLoadError(f"eos_token_id must be one token or a list of them, not {value!r}")
    return frozenset(found)


class _Keys:
    """Reads required keys and names the one that is missing."""

    def __init__(self, values: dict[str, Any], prefix: str) -> None:
        self._values = values
        self._prefix = prefix

    def get(self, key: str, *default: Any) -> Any:
        """Return a value, the default, or an error that names the key."""
        value = self._values.get(self._prefix + key)
        if value is None:
            if not default:
                raise ModelLoadError(f"the model's configuration has no {self._prefix + key}")
            return default[0]
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self.get(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self._prefix + key} must be a whole number of at least 1, not {value!r}")
        return value
