"""What a request asks for, as far as routing cares: model, size, prompt's beginning, whose conversation.

Pure. Knows OpenAI's bodies for chat and completions. Refuses to check them, which is the engine's work: what
is missing or of another form counts as nothing. Tokens are estimated, since the gateway has no tokenizer.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

CHARACTERS_PER_TOKEN: Final = 4
BLOCK_CHARACTERS: Final = 256
MAX_BLOCKS: Final = 64
SESSION_FIELDS: Final = ("prompt_cache_key", "user", "safety_identifier")

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request's size and affinity; `prefix` has a chained hash per whole block of its prompt's start."""

    model: str | None = None
    is_stream: bool = False
    num_prompt_tokens: int = 0
    session: str = ""
    prefix: tuple[bytes, ...] = ()


def read_ask(document: Document, *, salt: str = "", session: str = "") -> Ask:
    """Read a body; prompts of different `salt` (the tenant) are never equal, as in the engine's cache.

    A `session` that was named elsewhere goes before those in the body.
    """
    model = document.get("model")
    pieces = list(_pieces(document))
    return Ask(
        model=model if isinstance(model, str) else None,
        is_stream=document.get("stream") is True,
        num_prompt_tokens=sum(_num_tokens(piece) for piece in pieces),
        session=session or next(filter(None, (_text(document.get(name)) for name in SESSION_FIELDS)), ""),
        prefix=_chain(_leading(pieces, BLOCK_CHARACTERS * MAX_BLOCKS), salt),
    )


def _pieces(document: Document) -> Iterator[str | list[int]]:
    """Give the prompt's parts in the order in which the engine reads them."""
    tools = document.get("tools")
    if isinstance(tools, list) and tools:
        yield json.dumps(tools, sort_keys=True)
    messages = document.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            yield f"\x00{_text(message.get('role'))}\x00"
            yield from _content(message.get("content"))
    prompt = document.get("prompt", document.get("input"))
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        yield from _several(prompt)


def _several(prompts: list[Any]) -> Iterator[str | list[int]]:
    if all(isinstance(token, int) for token in prompts):
        yield prompts
        return
    for prompt in prompts:
        is_ids = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
        if is_ids or isinstance(prompt, str):
            yield prompt


def _content(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def _num_tokens(piece: str | list[int]) -> int:
    return len(piece) if isinstance(piece, list) else -(-len(piece) // CHARACTERS_PER_TOKEN)


def _leading(pieces: list[str | list[int]], max_characters: int) -> str:
    """Give the first characters of all pieces in a row; a token id counts as the characters of its number."""
    taken: list[str] = []
    left = max_characters
    for piece in pieces:
        text = piece[:left] if isinstance(piece, str) else " ".join(map(str, piece[:left]))[:left]
        taken.append(text)
        left -= len(text)
        if left <= 0:
            break
    return "".join(taken)


def _chain(text: str, salt: str) -> tuple[bytes, ...]:
    """Hash each whole block together with all before it."""
    hashes: list[bytes] = []
    before = salt.encode(errors="surrogatepass")
    for start in range(0, len(text) - BLOCK_CHARACTERS + 1, BLOCK_CHARACTERS):
        block = text[start : start + BLOCK_CHARACTERS].encode(errors="surrogatepass")
        before = hashlib.blake2b(block, key=before[:64], digest_size=8).digest()
        hashes.append(before)
    return tuple(hashes)


def _text(value: object) -> str:
    return value[:256] if isinstance(value, str) else ""
