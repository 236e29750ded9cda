"""The bytes that each token stands for, for tokenizers whose tokens are runs of bytes (GPT-2's byte level).

Knows how such tokens write bytes as characters. Text of such tokens is their bytes joined, whatever stands
beside them, so a stream can be decoded token by token at next to no cost.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders


class BytePieces:
    """Looks up a token's bytes, as the library's decoder would write them; special tokens have none."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._special = {
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        }
        self._known: dict[int, bytes] = {}

    def __call__(self, token_id: int) -> bytes:
        """Return the bytes of one token; an id that the vocabulary does not have has none."""
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = self._look_up(token_id)
        return piece

    def _look_up(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        try:
            return bytes(_BYTE_OF[character] for character in token)
        except KeyError:
            return token.encode()  # an added token, written plainly


def byte_pieces(backend: Tokenizer) -> BytePieces | None:
    """Return the pieces where the tokenizer is of that kind."""
    return BytePieces(backend) if isinstance(backend.decoder, decoders.ByteLevel) else None


def _byte_characters() -> dict[str, int]:
    """Return which byte each character stands for: itself where it can be seen, else from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    others = (byte for byte in range(256) if chr(byte) not in table)
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_characters()
