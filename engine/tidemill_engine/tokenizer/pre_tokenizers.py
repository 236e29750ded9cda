"""How each family cuts text into words before BPE, by the name that GGUF files carry in `tokenizer.ggml.pre`.

The names and their patterns are those of llama.cpp's llama-vocab.cpp and of the families' own tokenizer.json
files. An unknown name is an error: a guess would give tokens that are nearly right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from tidemill_engine.errors import ModelLoadError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, kw_only=True)
class PreTokenization:
    """What happens to a text before BPE, and two habits of the family that go with it."""

    splitter: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    ignores_merges: bool = False
    """A whole word of the vocabulary is one token even where no merges lead to it."""
    adds_bos: bool = False
    """What holds where the file does not say."""


def _gpt2() -> PreTokenization:
    return PreTokenization(splitter=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def _single_digits() -> PreTokenization:
    return PreTokenization(
        splitter=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    )


def _split(max_digits: str) -> pre_tokenizers.PreTokenizer:
    pattern = f"{_CONTRACTIONS}|{_WORDS}|{max_digits}|{_REST}"
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _llama3() -> PreTokenization:
    return PreTokenization(splitter=_split(r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True)


def _qwen2() -> PreTokenization:
    return PreTokenization(splitter=_split(r"\p{N}"), normalizer=normalizers.NFC())


def _stablelm2() -> PreTokenization:
    return PreTokenization(splitter=_split(r"\p{N}"))


_BUILDERS: dict[str, Callable[[], PreTokenization]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "phi-2"), _gpt2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _single_digits),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _llama3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _qwen2),
    "stablelm2": _stablelm2,
}


def pre_tokenization(name: object) -> PreTokenization:
    """Return how the family of this name cuts text."""
    builder = _BUILDERS.get(name) if isinstance(name, str) else None
    if builder is None:
        known = ", ".join(sorted(_BUILDERS))
        raise ModelLoadError(
            f"the GGUF file names the pre-tokenizer {name!r}, which is unknown here; known are {known}",
            reason="UnsupportedTokenizer",
        )
    return builder()
