"""Stop strings: found wherever the text is cut, never leaked, nothing else held back."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidemill_engine.api.stop import StopMatcher

LETTERS = st.text(alphabet="ab.", max_size=30)
STOPS = st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), max_size=4)


def run(stops: list[str], parts: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for part in parts:
        result = matcher.feed(part)
        shown += result.text
        if result.matched is not None:
            return shown, result.matched
    return shown + matcher.flush(), None


def oracle(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(marks)]


@given(STOPS, LETTERS, st.lists(st.integers(0, 100), max_size=8))
def test_the_result_does_not_depend_on_how_the_text_is_cut(
    stops: list[str], text: str, places: list[int]
) -> None:
    assert run(stops, cut(text, places)) == oracle(stops, text)


@given(STOPS, LETTERS)
def test_what_is_held_back_could_always_still_become_a_stop_string(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for i, letter in enumerate(text):
        result = matcher.feed(letter)
        shown += result.text
        if result.matched is not None:
            return
        held = text[len(shown) : i + 1]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_not_one_character_of_a_stop_string_over_several_tokens_is_shown() -> None:
    matcher = StopMatcher(["DEFGHIJ"])
    results = [matcher.feed(part) for part in ("AB", "CDE", "FGH", "IJK")]
    assert [result.text for result in results] == ["AB", "C", "", ""]
    assert results[-1].matched == "DEFGHIJ"


def test_a_stop_inside_a_token_cuts_at_the_character() -> None:
    result = StopMatcher([".."]).feed("wait...")
    assert (result.text, result.matched) == ("wait", "..")


def test_text_that_only_looked_like_a_stop_string_is_released_at_once() -> None:
    matcher = StopMatcher(["abcd"])
    assert matcher.feed("xab").text == "x"
    assert matcher.feed("x").text == "abx"
