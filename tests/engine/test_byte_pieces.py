"""Tokens as bytes: the same text as the library's decoder writes, and only where that is true."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from tidemill_engine.tokenizer.byte_pieces import byte_pieces


def make_backend() -> Tokenizer:
    """A vocabulary of all single bytes, some words, an added token outside the byte alphabet, one special."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, "Ġtide", "Ġthe", "Ã©"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens([AddedToken("日本 plain", special=False, normalized=False)])
    return backend


BACKEND = make_backend()


@given(st.lists(st.integers(0, BACKEND.get_vocab_size() + 3), max_size=40))
def test_the_bytes_joined_are_the_text_that_the_library_writes(ids: list[int]) -> None:
    pieces = byte_pieces(BACKEND)
    assert pieces is not None
    known = [token_id for token_id in ids if BACKEND.id_to_token(token_id) is not None]
    text = b"".join(pieces(token_id) for token_id in ids).decode(errors="replace")
    assert text == BACKEND.decode(known, skip_special_tokens=True)


def test_other_kinds_of_tokenizers_have_none() -> None:
    backend = make_backend()
    backend.decoder = decoders.Metaspace()
    assert byte_pieces(backend) is None
