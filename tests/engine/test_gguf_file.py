from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.gguf_file import read_gguf_head
from tidemill_engine.models.rotary import frequencies
from tidemill_engine.models.weights import GgufWeights, Values, open_weights, unpermuted

HIDDEN, HEADS, KV_HEADS, INTER, VOCAB = 64, 4, 2, 96, 50
SHAPES = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_v.weight": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (INTER, HIDDEN),
    "blk.0.ffn_up.weight": (INTER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INTER),
}
Change = Callable[[gguf.GGUFWriter], None]


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    quantized: dict[str, gguf.GGMLQuantizationType] | None = None,
    change: Change = lambda _writer: None,
) -> dict[str, np.ndarray]:
    """Write a tiny model and return its tensors as they were before quantisation."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_eos_token_id(2)
    writer.add_array("tokenizer.ggml.tokens", [f"t{index}" for index in range(VOCAB)])
    change(writer)
    generator = np.random.default_rng(0)
    tensors = {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    for name, values in tensors.items():
        kind = (quantized or {}).get(name)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_the_head_holds_keys_and_where_tensors_lie(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tensors = write_gguf(path)
    head = read_gguf_head(path)
    assert head.metadata["general.architecture"] == "llama"
    assert head.metadata["llama.attention.head_count_kv"] == KV_HEADS
    assert head.metadata["tokenizer.ggml.tokens"][3] == "t3"
    found = head.tensors["blk.0.ffn_gate.weight"]
    assert found.shape == (INTER, HIDDEN)
    raw = path.read_bytes()[found.offset : found.offset + found.num_elements * 4]
    assert raw == tensors["blk.0.ffn_gate.weight"].tobytes()


def test_the_shapes_of_the_model_come_from_its_keys(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    config = open_weights(tmp_path / "tiny.gguf").config
    assert (config.num_layers, config.hidden_size, config.head_dim) == (1, HIDDEN, HIDDEN // HEADS)
    assert (config.vocab_size, config.max_model_len) == (VOCAB, 128)
    assert config.has_tied_embeddings
    assert config.eos_token_ids == {2}


def test_rotary_embeddings_are_scaled_as_the_file_says(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    half = HIDDEN // HEADS // 2
    divisors = np.linspace(1.0, 8.0, half, dtype=np.float32)
    write_gguf(tmp_path / "linear.gguf", change=linear)
    write_gguf(tmp_path / "each.gguf", change=lambda w: w.add_tensor("rope_freqs.weight", divisors))
    assert open_weights(tmp_path / "linear.gguf").config.rope_divisors == (4.0,) * half
    each = open_weights(tmp_path / "each.gguf")
    assert each.config.rope_divisors == tuple(divisors.tolist())
    assert "rope_freqs.weight" not in each.unread()

    def both(writer: gguf.GGUFWriter) -> None:
        linear(writer)
        writer.add_tensor("rope_freqs.weight", divisors)

    write_gguf(tmp_path / "both.gguf", change=both)
    assert open_weights(tmp_path / "both.gguf").config.rope_divisors == tuple((4.0 * divisors).tolist())
    write_gguf(tmp_path / "zero.gguf", change=lambda w: w.add_tensor("rope_freqs.weight", 0 * divisors))
    with pytest.raises(ModelLoadError, match="rotary embeddings"):
        open_weights(tmp_path / "zero.gguf")
    plain = replace(each.config, rope_divisors=())
    np.testing.assert_allclose(frequencies(each.config) * divisors, frequencies(plain), rtol=1e-6)


@pytest.mark.parametrize(
    ("key", "factor", "found"),
    [
        ("rope.scaling.factor", 4.0, 4.0),
        ("rope.scale_linear", 2.0, 2.0),
        ("rope.scaling.factor", 0.0, None),
    ],
)
def test_a_factor_without_a_type_scales_evenly(
    tmp_path: Path, key: str, factor: float, found: float | None
) -> None:
    write_gguf(tmp_path / "m.gguf", change=lambda writer: writer.add_float32(f"llama.{key}", factor))
    wanted = () if found is None else (found,) * (HIDDEN // HEADS // 2)
    assert open_weights(tmp_path / "m.gguf").config.rope_divisors == wanted


@pytest.mark.parametrize("factor", [-2.0, float("nan")])
def test_a_factor_that_is_none_is_an_error(tmp_path: Path, factor: float) -> None:
    write_gguf(tmp_path / "m.gguf", change=lambda writer: writer.add_rope_scaling_factor(factor))
    with pytest.raises(ModelLoadError, match="factor of the rotary embeddings"):
        open_weights(tmp_path / "m.gguf")


def test_a_quantised_tensor_is_read_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    tensors = write_gguf(tmp_path / "tiny.gguf", quantized={"blk.0.ffn_up.weight": kind})
    source = GgufWeights(tmp_path / "tiny.gguf")
    values = source.values("model.layers.0.mlp.up_proj.weight")
    expected = gguf.dequantize(gguf.quantize(tensors["blk.0.ffn_up.weight"], kind), kind)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    ("kind", "name"), [(gguf.GGMLQuantizationType.Q8_0, "q8_0"), (gguf.GGMLQuantizationType.Q4_1, "q4_1")]
)
def test_blocks_that_the_kernels_take_are_passed_on_as_they_lie_in_the_file(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, name: str
) -> None:
    tensors = write_gguf(tmp_path / "tiny.gguf", quantized={"blk.0.attn_q.weight": kind})
    source = GgufWeights(tmp_path / "tiny.gguf")
    tensor = "model.layers.0.self_attn.q_proj.weight"
    assert source.block_kind(tensor) == name
    blocks = source.blocks(tensor)
    assert (blocks.kind, blocks.columns, blocks.interleaved_heads) == (name, HIDDEN, HEADS)
    np.testing.assert_array_equal(blocks.data, gguf.quantize(tensors["blk.0.attn_q.weight"], kind))
    assert "blk.0.attn_q.weight" not in source.unread()


def test_plain_numbers_and_other_formats_are_no_blocks(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q5_0
    write_gguf(tmp_path / "tiny.gguf", quantized={"blk.0.attn_q.weight": kind})
    source = GgufWeights(tmp_path / "tiny.gguf")
    for tensor in ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "no_such.weight"):
        assert source.block_kind(f"model.layers.0.{tensor}") is None


def interleaved(weight: Values, num_heads: int) -> Values:
    """Return rows in the order in which llama.cpp's converter writes q and k."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def test_queries_and_keys_are_unpermuted_for_llama_only(tmp_path: Path) -> None:
    for architecture, is_permuted in (("llama", True), ("qwen2", False)):
        path = tmp_path / f"{architecture}.gguf"
        tensors = write_gguf(path, architecture=architecture)
        source = GgufWeights(path)
        for name, gguf_name, heads in (("q_proj", "attn_q", HEADS), ("k_proj", "attn_k", KV_HEADS)):
            values = source.values(f"model.layers.0.self_attn.{name}.weight")
            stored = tensors[f"blk.0.{gguf_name}.weight"]
            np.testing.assert_array_equal(interleaved(values, heads) if is_permuted else values, stored)


def test_unpermuting_undoes_the_converters_order() -> None:
    weight = np.arange(48, dtype=np.float32).reshape(24, 2)
    np.testing.assert_array_equal(unpermuted(interleaved(weight, 3), 3), weight)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ModelLoadError, match=r"blk\.7\.attn_q\.weight"):
        GgufWeights(tmp_path / "tiny.gguf").values("model.layers.7.self_attn.q_proj.weight")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "readable GGUF"),
        (b"GG", "readable GGUF"),
        (b"JUNKJUNKJUNKJUNKJUNKJUNKJUNK", "starts with"),
        (b"GGUF\x09\x00\x00\x00" + bytes(16), "version 9"),
        (b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x01" + bytes(7) + b"\xff" * 8, "end of the file"),
    ],
)
def test_a_file_that_is_not_gguf_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        read_gguf_head(path)


def test_a_file_cut_short_is_refused_and_no_cut_crashes_the_reader(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    head_end = min(tensor.offset for tensor in read_gguf_head(tmp_path / "tiny.gguf").tensors.values())
    for length in range(0, head_end - 64, 97):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError):
            read_gguf_head(cut)
    cut.write_bytes(whole[:-100])
    source = GgufWeights(cut)
    with pytest.raises(ModelLoadError, match="ends within"):
        source.values("model.layers.0.mlp.down_proj.weight")


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("gpt2", lambda _: None, "architecture 'gpt2'"),
        ("llama", lambda w: w.add_expert_count(8), "experts"),
        ("llama", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "rotary"),
        ("llama", lambda w: w.add_rope_dimension_count(8), "partial rotary"),
        ("llama", lambda w: w.add_key_length(7), "even head size"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_name(
    tmp_path: Path, architecture: str, change: Change, message: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture=architecture, change=change)
    with pytest.raises(ModelLoadError, match=message):
        open_weights(tmp_path / "tiny.gguf")


def test_neither_gguf_nor_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelLoadError, match="neither"):
        open_weights(tmp_path / "model.bin")
