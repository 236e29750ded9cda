"""Tokenizers built without transformers: the same ids, one BOS, clear errors."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from tidemill_engine import sim_vocab
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.model_uri import find_model_path, parse_model_uri
from tidemill_engine.tokenizer import load_tokenizer
from tidemill_engine.tokenizer.pre_tokenizers import pre_tokenization
from tidemill_engine.tokenizer.sources import (
    tokenizer_for_sim,
    tokenizer_from_directory,
    tokenizer_from_gguf,
)

CORPUS = [
    "",
    "Hello, world!",
    "The year 2024 had 366 days; pi is 3.14159 and 1,000,000 is a lot.",
    "I'm you're he's WE'LL they'd don't",
    "   leading and trailing   ",
    "tabs\tand\nnew\r\nlines\n\n\n  mixed \t \n",
    "def f(x):\n    return {'a': [x ** 2, None]}  # comment\n",
    "naïve café Ünïcödé e\u0301 combining",
    "日本語のテキストと中文字符、还有标点。",
    "안녕하세요 세계 Привет мир مرحبا بالعالم שלום",
    "😀👩‍👩‍👧‍👦🇩🇪 emoji 🤷🏽‍♀️ and ☃",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>half a <|im_ special<|endoftext|><repo_name>x",
    "\u200b\ufeff\u00a0zero width and no-break",
    "control \x00\x01\x7f bytes",
    "a" * 300 + " " * 50 + "!?" * 40,
    "https://example.com/path?q=1&r=%20#frag user@host",
    "\ud7ff\ue000\U0010ffff edges",
]
NUMERALS = "½ ² ① Ⅷ ٣٤٥ ९८७"
"""Transformers converts a GGUF without its family's splitting of digits, which matters for these
only: the merges hold none for ASCII digits. The model's own tokenizer.json splits them, and so does ours."""
SMOLLM = parse_model_uri("builtin://smollm2-135m")


@pytest.mark.real_model
@pytest.mark.slow
def test_ids_and_text_are_those_of_transformers_for_the_same_gguf() -> None:
    import transformers

    path = find_model_path(SMOLLM)  # type: ignore[arg-type] # a builtin model
    theirs = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    ours = load_tokenizer(SMOLLM)
    for text in CORPUS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    assert (ours.eos_token_id, ours.chat_template) == (theirs.eos_token_id, theirs.chat_template)


@pytest.mark.parametrize("text", [*CORPUS, NUMERALS])
def test_the_builtin_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizer = load_tokenizer(SMOLLM)
    ids = tokenizer.encode(text)
    assert tokenizer.backend.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


def test_special_tokens_in_a_text_are_one_id_each_and_are_not_shown() -> None:
    tokenizer = load_tokenizer(SMOLLM)
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "user\nhi"
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_numerals_of_every_script_are_split_as_the_family_does() -> None:
    tokenizer = load_tokenizer(SMOLLM)
    joined = [token_id for letter in NUMERALS for token_id in tokenizer.encode(letter)]
    assert tokenizer.encode(NUMERALS) == joined


@pytest.mark.parametrize("text", [*CORPUS, NUMERALS])
def test_the_sim_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizer = tokenizer_for_sim()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_sim_tokenizer_agrees_with_its_vocabulary() -> None:
    tokenizer = tokenizer_for_sim()
    assert tokenizer.vocab_size == sim_vocab.VOCAB_SIZE
    for token_id, spelled in enumerate(sim_vocab.TOKEN_BYTES):
        if token_id >= sim_vocab.FIRST_WORD:
            assert tokenizer.encode(spelled.decode()) == [token_id]
            assert tokenizer.decode([token_id]) == spelled.decode()


def test_exactly_one_bos_is_added_where_the_model_wants_one() -> None:
    tokenizer = dataclasses.replace(tokenizer_for_sim(), adds_bos=True)
    plain = tokenizer_for_sim().encode("hello")
    assert tokenizer.encode("hello") == [sim_vocab.BOS, *plain]
    assert tokenizer.encode("<|bos|>hello") == [sim_vocab.BOS, *plain]
    assert tokenizer.encode("") == [sim_vocab.BOS]


@pytest.mark.parametrize(
    ("family", "text", "words"),
    [
        ("gpt-2", "it's 2024 ok", ["it", "'s", "Ġ2024", "Ġok"]),
        ("smollm", "in 2024 ok", ["in", "Ġ", "2", "0", "2", "4", "Ġok"]),
        ("llama-bpe", "in 20245 IT'S\n\nok", ["in", "Ġ", "202", "45", "ĠIT", "'S", "ĊĊ", "ok"]),
        ("qwen2", "in 20 ok!\n", ["in", "Ġ", "2", "0", "Ġok", "!Ċ"]),
    ],
)
def test_each_family_cuts_text_in_its_own_way(family: str, text: str, words: list[str]) -> None:
    assert [word for word, _ in pre_tokenization(family).splitter.pre_tokenize_str(text)] == words


@pytest.mark.parametrize("name", ["gpt-9", None, "", 7])
def test_an_unknown_pre_tokenizer_is_an_error_that_lists_the_known(name: Any) -> None:
    with pytest.raises(ModelLoadError, match="smollm") as caught:
        pre_tokenization(name)
    assert repr(name) in caught.value.message


def gguf_bytes(values: dict[str, Any]) -> bytes:
    """Write a GGUF file without tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def typed(value: Any) -> bytes:
        if isinstance(value, bool):
            return struct.pack("<I?", 7, value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        kind = 8 if isinstance(value[0], str) else 4
        items = b"".join(text(item) if kind == 8 else struct.pack("<I", item) for item in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + items

    body = b"".join(text(key) + typed(value) for key, value in values.items())
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(values)) + body


SMALL: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": ["<s>", "h", "i", "hi", "<tool>", "Ġ"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 4, 1],
    "tokenizer.ggml.merges": ["h i"],
    "tokenizer.ggml.bos_token_id": 0,
}


def test_a_small_gguf_is_read_with_its_bos_and_its_marked_tokens(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf_bytes(SMALL))
    tokenizer = tokenizer_from_gguf(path)
    assert tokenizer.adds_bos
    assert tokenizer.encode("hi<tool>h") == [0, 3, 4, 1]
    assert tokenizer.decode([0, 3, 4]) == "hi<tool>"
    path.write_bytes(gguf_bytes(SMALL | {"tokenizer.ggml.add_bos_token": False}))
    assert tokenizer_from_gguf(path).encode("hi") == [3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.pre": "mystery"}, "mystery"),
        ({"tokenizer.ggml.model": "llama"}, "llama"),
        ({"tokenizer.ggml.merges": None}, "merges"),
        ({"tokenizer.ggml.tokens": None}, "tokens"),
    ],
)
def test_a_gguf_without_a_usable_tokenizer_says_what_is_missing(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    values = {key: value for key, value in (SMALL | changes).items() if value is not None}
    path.write_bytes(gguf_bytes(values))
    with pytest.raises(ModelLoadError, match=words) as caught:
        tokenizer_from_gguf(path)
    assert caught.value.reason == "UnsupportedTokenizer"


def make_directory(path: Path, *, adds_bos: bool) -> None:
    """Write a tokenizer.json as trainers leave it, padding and truncation included."""
    backend = Tokenizer(BPE(vocab={"<s>": 0, "h": 1, "i": 2, "hi": 3, "</s>": 4}, merges=[("h", "i")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
        )
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(path / "tokenizer.json"))
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_directory_is_read_without_its_padding_and_truncation(tmp_path: Path, adds_bos: bool) -> None:
    make_directory(tmp_path, adds_bos=adds_bos)
    tokenizer = tokenizer_from_directory(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 4)
    assert tokenizer.encode("hihihi") == [0] * adds_bos + [3, 3, 3]
    assert tokenizer.chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert tokenizer_from_directory(tmp_path).chat_template == "file"


def test_a_directory_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        tokenizer_from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="can't be read"):
        tokenizer_from_directory(tmp_path)
