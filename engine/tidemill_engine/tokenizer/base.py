"""One model's tokenizer: exactly one BOS where the model wants it, special tokens never shown.

Knows the `tokenizers` library; does not know where the vocabulary came from, nor how a chat becomes text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer

from tidemill_engine.tokenizer.byte_pieces import BytePieces, byte_pieces


@dataclass(frozen=True, kw_only=True)
class ModelTokenizer:
    """Everything about text that the API process needs to know of a model."""

    backend: Tokenizer
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    adds_bos: bool = False
    chat_template: str | None = None

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids, special ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def byte_pieces(self) -> BytePieces | None:
        """Return the bytes of each token, where text is nothing but its tokens' bytes."""
        return byte_pieces(self.backend)

    def encode(self, text: str) -> list[int]:
        """Tokenize a prompt; special tokens written in it count as such; a BOS is added unless it has one.

        Releases the interpreter lock, so a long prompt can be tokenized in a thread.
        """
        ids = self.backend.encode_batch([text], add_special_tokens=False)[0].ids
        bos = self.bos_token_id
        if self.adds_bos and bos is not None and (not ids or ids[0] != bos):
            return [bos, *ids]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Write token ids as text, special tokens left out."""
        return self.backend.decode(token_ids, skip_special_tokens=True)

    def token_text(self, token_id: int) -> str:
        """Write one token alone, special ones too, as log probabilities show it."""
        text = self.backend.decode([token_id], skip_special_tokens=False)
        return text or self.backend.id_to_token(token_id) or ""

    def special_token_text(self, token_id: int | None) -> str:
        """Return how a special token is written in templates, or nothing where there is none."""
        return (self.backend.id_to_token(token_id) or "") if token_id is not None else ""
