"""Builds a tokenizer from GGUF metadata, a directory with tokenizer.json, or the sim vocabulary.

Knows those three formats; does not know URIs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tidemill_engine import sim_vocab
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.gguf_file import read_gguf_head
from tidemill_engine.tokenizer.base import ModelTokenizer
from tidemill_engine.tokenizer.pre_tokenizers import pre_tokenization

_CONTROL, _USER_DEFINED = 3, 4
SIM_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def tokenizer_from_gguf(path: Path) -> ModelTokenizer:
    """Build a byte-level BPE tokenizer from the metadata of a GGUF file."""
    metadata = read_gguf_head(path).metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelLoadError(
            f"{path.name} has a tokenizer of kind {kind!r}; only gpt2 (byte-level BPE) is supported yet",
            reason="UnsupportedTokenizer",
        )
    tokens: list[str] = _required(metadata, "tokenizer.ggml.tokens", path)
    merges: list[str] = _required(metadata, "tokenizer.ggml.merges", path)
    pre = pre_tokenization(metadata.get("tokenizer.ggml.pre"))
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = Tokenizer(BPE(vocab=vocab, merges=pairs, ignore_merges=pre.ignores_merges))
    backend.pre_tokenizer = pre.splitter
    backend.decoder = decoders.ByteLevel()
    if pre.normalizer is not None:
        backend.normalizer = pre.normalizer
    _add_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type", []))
    return ModelTokenizer(
        backend=backend,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=metadata.get("tokenizer.ggml.eos_token_id"),
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", pre.adds_bos)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _required(metadata: dict[str, Any], key: str, path: Path) -> Any:
    try:
        return metadata[key]
    except KeyError:
        raise ModelLoadError(f"{path.name} has no {key}", reason="UnsupportedTokenizer") from None


def _add_tokens(backend: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Mark the tokens that are found whole in a text before anything else is done with it."""
    marked = list(zip(tokens, types, strict=False))
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in marked if kind == _CONTROL]
    )
    backend.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in marked
            if kind == _USER_DEFINED
        ]
    )


def tokenizer_from_directory(path: Path) -> ModelTokenizer:
    """Build a tokenizer from tokenizer.json and what lies beside it."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelLoadError(f"{path} holds no tokenizer.json", reason="UnsupportedTokenizer")
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"{file} can't be read: {error}", reason="UnsupportedTokenizer") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(path / "tokenizer_config.json")
    bos = _token_id(backend, config.get("bos_token"))
    return ModelTokenizer(
        backend=backend,
        bos_token_id=bos,
        eos_token_id=_token_id(backend, config.get("eos_token")),
        adds_bos=bos is not None and backend.encode("a").ids[:1] == [bos],
        chat_template=_chat_template(path, config),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ModelLoadError(f"{path} can't be read: {error}", reason="UnsupportedTokenizer") from error


def _token_id(backend: Tokenizer, token: Any) -> int | None:
    content = token.get("content") if isinstance(token, dict) else token
    return backend.token_to_id(content) if isinstance(content, str) else None


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def tokenizer_for_sim() -> ModelTokenizer:
    """Build the tokenizer of `sim://` models: known words are one token, all else is bytes."""
    letters = _byte_letters()
    spelled = ("".join(letters[byte] for byte in token) for token in sim_vocab.TOKEN_BYTES)
    vocab = {text: i for i, text in enumerate(spelled) if text} | sim_vocab.SPECIAL_TOKENS
    backend = Tokenizer(BPE(vocab=vocab, merges=[], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in sim_vocab.SPECIAL_TOKENS])
    return ModelTokenizer(
        backend=backend,
        bos_token_id=sim_vocab.BOS,
        eos_token_id=sim_vocab.EOS,
        chat_template=SIM_CHAT_TEMPLATE,
    )


def _byte_letters() -> list[str]:
    """Return the printable letter that stands for each byte in byte-level BPE (GPT-2's bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [letters[byte] for byte in range(256)]
