"""Incremental detokenizing: whole characters only, nothing lost, nothing of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_engine import sim_vocab
from tidemill_engine.api.detokenizer import MAX_HELD_TOKENS, ByteDetokenizer, Detokenizer, WindowDetokenizer
from tidemill_engine.tokenizer.sources import tokenizer_for_sim

TOKENIZER = tokenizer_for_sim()
Kind = Literal["window", "bytes"]
both_kinds = pytest.mark.parametrize("kind", ["window", "bytes"])


def make_detokenizer(kind: Kind, prompt: Sequence[int] = (), *, prompt_is_text: bool = True) -> Detokenizer:
    if kind == "window":
        return WindowDetokenizer(TOKENIZER.decode, prompt, prompt_is_text=prompt_is_text)
    byte_pieces = TOKENIZER.byte_pieces
    assert byte_pieces is not None
    return ByteDetokenizer(byte_pieces, prompt, prompt_is_text=prompt_is_text)


def bytes_of(text: str) -> list[int]:
    return [sim_vocab.FIRST_BYTE + byte for byte in text.encode()]


def pieces(
    kind: Kind, ids: Sequence[int], prompt: Sequence[int] = (), *, prompt_is_text: bool = True
) -> list[str]:
    detokenizer = make_detokenizer(kind, prompt, prompt_is_text=prompt_is_text)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@both_kinds
@given(st.text(), st.text())
def test_pieces_of_single_bytes_join_to_the_text_without_replacement_characters(
    kind: Kind, prompt: str, text: str
) -> None:
    parts = pieces(kind, bytes_of(text), bytes_of(prompt))
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


@both_kinds
@given(st.lists(st.integers(0, sim_vocab.VOCAB_SIZE - 1), max_size=60))
def test_any_tokens_at_all_join_to_what_decoding_them_together_gives(kind: Kind, ids: list[int]) -> None:
    assert "".join(pieces(kind, ids)) == TOKENIZER.decode(ids)


@both_kinds
def test_a_character_is_returned_with_its_last_byte(kind: Kind) -> None:
    assert pieces(kind, bytes_of("a😀b")) == ["a", "", "", "", "😀", "b", ""]


@both_kinds
def test_text_before_an_incomplete_character_is_not_held_back(kind: Kind) -> None:
    word = sim_vocab.TOKEN_BYTES.index(b" tide")
    assert pieces(kind, [word, *bytes_of("é")[:1], *bytes_of("é")[1:]]) == [" tide", "", "é", ""]


@both_kinds
def test_an_end_cut_inside_a_character_is_flushed_once(kind: Kind) -> None:
    detokenizer = make_detokenizer(kind)
    assert [detokenizer.push(token_id) for token_id in bytes_of("日")[:2]] == ["", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


@both_kinds
def test_a_character_begun_by_prompt_token_ids_is_completed(kind: Kind) -> None:
    whole = bytes_of("😀")
    assert pieces(kind, whole[2:], [*bytes_of("ab"), *whole[:2]], prompt_is_text=False) == ["", "😀", ""]


@both_kinds
def test_a_prompt_text_that_ends_in_a_replacement_character_is_not_repeated(kind: Kind) -> None:
    assert "".join(pieces(kind, bytes_of("x"), bytes_of("a\ufffd"), prompt_is_text=True)) == "x"


@both_kinds
def test_special_tokens_are_not_shown(kind: Kind) -> None:
    assert "".join(pieces(kind, [*bytes_of("a"), sim_vocab.EOS, *bytes_of("b")])) == "ab"


def test_an_endless_run_of_invalid_bytes_does_not_pile_up() -> None:
    detokenizer = WindowDetokenizer(TOKENIZER.decode, [], prompt_is_text=True)
    invalid = sim_vocab.FIRST_BYTE + 0x80
    text = "".join(detokenizer.push(invalid) for _ in range(200)) + detokenizer.flush()
    assert text == "\ufffd" * 200
    assert len(detokenizer._window) <= 2 * MAX_HELD_TOKENS + 10
