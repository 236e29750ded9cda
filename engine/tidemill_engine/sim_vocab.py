"""The vocabulary of the `sim://` model: 4,096 tokens that spell readable text.

Id 0 is BOS, 1 EOS, 2 PAD; 3..258 are the 256 bytes; the rest are words with a leading space. Both processes
import it: the fake runner chooses ids, the API process's sim tokenizer spells and splits them.
"""

from __future__ import annotations

from itertools import product
from typing import Final

VOCAB_SIZE: Final = 4096
BOS: Final = 0
EOS: Final = 1
PAD: Final = 2
FIRST_BYTE: Final = 3
FIRST_WORD: Final = FIRST_BYTE + 256

_COMMON = """
the a of to and in is it that was for on are with as at be this from have or by one had not but what
all were when we there can an your which their if do will each how about up out many then them these
so some her would make like him into time has look two more write go see number no way could people
my than first water been call who oil now find long down day did get come made may part tide mill
wheel river stone grain flour boat harbor
"""


def _invented_words() -> list[str]:
    """Return distinct pronounceable words, in a fixed order, more than the vocabulary needs."""
    syllables = [consonant + vowel for consonant, vowel in product("bdfgklmnprstvz", "aeiou")]
    return [first + second for first, second in product(syllables, syllables)]


def _token_bytes() -> tuple[bytes, ...]:
    """Build the table from id to bytes; the three special tokens spell nothing."""
    words = list(dict.fromkeys([*_COMMON.split(), *_invented_words()]))[: VOCAB_SIZE - FIRST_WORD]
    return (
        b"",
        b"",
        b"",
        *(bytes([value]) for value in range(256)),
        *(f" {word}".encode() for word in words),
    )


TOKEN_BYTES: Final[tuple[bytes, ...]] = _token_bytes()
SPECIAL_TOKENS: Final[dict[str, int]] = {"<|bos|>": BOS, "<|eos|>": EOS, "<|pad|>": PAD}
