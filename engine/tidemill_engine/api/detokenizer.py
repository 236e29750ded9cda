"""Turns output token ids into text as they come, character by whole character.

Knows a decode function, or the bytes of each token, and nothing else: no stop strings, no streams. Pure.

Where text is its tokens' bytes joined, the bytes are decoded as they come (`ByteDetokenizer`), at a fraction
of what asking the library costs. Others need the general way (`WindowDetokenizer`): tokens may end in the
middle of a UTF-8 character, and some decoders write a token differently at the start of a text, so single
tokens can't be decoded alone. A window of recent tokens is decoded instead and what is new at its end is
returned:

    window    [ seed or already returned | new tokens ]
    decoded   [ returned                 | new text | up to 3 replacement characters: held back ]
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
NUM_SEED_TOKENS = 6
MAX_INCOMPLETE_BYTES = 3
"""A UTF-8 character has at most four bytes, so at most three of them can be waiting for the last."""
MAX_HELD_TOKENS = 16
"""Past this many tokens without a clean end the bytes are truly invalid and are shown as such."""


class Detokenizer(Protocol):
    """Decodes one sequence incrementally; the pieces join to the text of all its output tokens."""

    def push(self, token_id: int) -> str:
        """Add one token and return the text that is now certain."""

    def flush(self) -> str:
        """Return what was held back, as well as it can be shown, at the end of the sequence."""


class ByteDetokenizer:
    """Decodes a sequence whose tokens are runs of bytes."""

    def __init__(
        self, piece_of: Callable[[int], bytes], prompt_token_ids: Sequence[int], *, prompt_is_text: bool
    ) -> None:
        """Start behind a prompt; one given as token ids may end in the middle of a character."""
        self._piece_of = piece_of
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        if not prompt_is_text:
            self._decode(b"".join(map(piece_of, prompt_token_ids[-NUM_SEED_TOKENS:])))

    def push(self, token_id: int) -> str:
        """Add one token and return the text that is now certain."""
        return self._decode(self._piece_of(token_id))

    def flush(self) -> str:
        """Return what was held back, as well as it can be shown, at the end of the sequence."""
        return self._decode(b"", True)


class WindowDetokenizer:
    """Decodes one sequence incrementally; the pieces join to the text of all its output tokens."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int], *, prompt_is_text: bool
    ) -> None:
        """Start behind a prompt; one given as token ids may end in the middle of a character."""
        self._decode = decode
        self._window = list(prompt_token_ids[-NUM_SEED_TOKENS:])
        self._num_seed = len(self._window)
        seed_text = decode(self._window) if self._window else ""
        self._num_returned = len(seed_text) if prompt_is_text else len(seed_text) - _num_incomplete(seed_text)

    def push(self, token_id: int) -> str:
        """Add one token and return the text that is now certain."""
        self._window.append(token_id)
        text = self._decode(self._window)
        num_held = _num_incomplete(text)
        if num_held and len(self._window) - self._num_seed > MAX_HELD_TOKENS:
            num_held = 0
        new_text = text[self._num_returned : len(text) - num_held]
        self._num_returned += len(new_text)
        if new_text and not num_held:
            self._restart_window()
        return new_text

    def flush(self) -> str:
        """Return what was held back, as well as it can be shown, at the end of the sequence."""
        text = self._decode(self._window)
        new_text = text[self._num_returned :]
        self._num_returned = len(text)
        return new_text

    def _restart_window(self) -> None:
        """Keep a few returned tokens as context for the next ones."""
        self._window = self._window[-NUM_SEED_TOKENS:]
        self._num_seed = len(self._window)
        self._num_returned = len(self._decode(self._window))


def _num_incomplete(text: str) -> int:
    """Count the replacement characters at the end that may be the start of a character still to come."""
    num = len(text) - len(text.rstrip(REPLACEMENT))
    return min(num, MAX_INCOMPLETE_BYTES)
