"""A sequence's deltas: stop strings, stop tokens, counting and the end."""

from __future__ import annotations

from fake_core import tokens_of
from tidemill_engine import sim_vocab
from tidemill_engine.api.detokenizer import WindowDetokenizer
from tidemill_engine.api.sequence import Sequence
from tidemill_engine.api.stop import StopMatcher
from tidemill_engine.messages import FinishReason, RequestOutput
from tidemill_engine.tokenizer.sources import tokenizer_for_sim

TOKENIZER = tokenizer_for_sim()


def make_sequence(*stops: str, min_tokens: int = 0, stop_token_ids: tuple[int, ...] = ()) -> Sequence:
    detokenizer = WindowDetokenizer(TOKENIZER.decode, [], prompt_is_text=True)
    return Sequence(detokenizer, StopMatcher(stops), min_tokens=min_tokens, stop_token_ids=stop_token_ids)


def output(ids: list[int], finish: FinishReason | None = None, stop: int | None = None) -> RequestOutput:
    return RequestOutput(request_id="r", token_ids=ids, finish_reason=finish, stop_token_id=stop)


def test_outputs_that_wait_are_folded_into_one_delta() -> None:
    sequence = make_sequence()
    delta = sequence.push([output(tokens_of("ab")), output(tokens_of("c")), output(tokens_of("d"), "length")])
    assert (delta.text, delta.finish_reason, sequence.num_output_tokens) == ("abcd", "length", 4)


def test_tokens_after_a_stop_string_are_neither_shown_nor_counted() -> None:
    sequence = make_sequence("STOP")
    delta = sequence.push([output(tokens_of("abST")), output(tokens_of("OPxyz"))])
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("ab", "stop", "STOP")
    assert sequence.num_output_tokens == len("abSTOP")
    assert sequence.push([output(tokens_of("more"), "length")]).is_empty


def test_a_token_that_holds_a_stop_string_and_more_is_counted_once() -> None:
    word = sim_vocab.TOKEN_BYTES.index(b" tide")
    sequence = make_sequence("ti")
    delta = sequence.push([output([word, word])])
    assert (delta.text, sequence.num_output_tokens) == (" ", 1)


def test_held_text_is_released_at_the_end() -> None:
    sequence = make_sequence("STOP")
    assert sequence.push([output(tokens_of("abST"))]).text == "ab"
    assert sequence.push([output([], "length")]).text == "ST"


def test_the_rest_of_a_cut_character_is_flushed_once_at_the_end() -> None:
    sequence = make_sequence()
    delta = sequence.push([output(tokens_of("a😀")[:3], "length")])
    assert delta.text == "a\ufffd"


def test_a_stop_token_is_counted_but_not_shown() -> None:
    letter = tokens_of("z")[0]
    sequence = make_sequence(stop_token_ids=(letter,))
    delta = sequence.push([output([*tokens_of("a"), letter], "stop", letter)])
    assert (delta.text, delta.stop_reason, sequence.num_output_tokens) == ("a", letter, 2)


def test_the_models_own_end_is_no_stop_reason_of_the_client() -> None:
    delta = make_sequence().push([output([*tokens_of("a"), sim_vocab.EOS], "stop", sim_vocab.EOS)])
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("a", "stop", None)


def test_stop_strings_wait_for_min_tokens() -> None:
    sequence = make_sequence("a", min_tokens=4)
    delta = sequence.push([output(tokens_of("aabba"))])
    assert (delta.text, sequence.num_output_tokens) == ("aabb", 5)
