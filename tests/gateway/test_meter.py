"""Output tokens, counted while an answer passes."""

from hypothesis import given
from hypothesis import strategies as st

from tidemill_gateway.meter import Meter

EVENTS = b"".join(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' for _ in range(7))
USAGE = b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 19}}\n\n'
END = b"data: [DONE]\n\n"


def counted(*chunks: bytes, is_events: bool = True) -> int:
    meter = Meter(is_events=is_events)
    for chunk in chunks:
        meter.feed(chunk)
    return meter.num_tokens


def test_each_event_counts_as_a_token_where_the_answer_says_nothing() -> None:
    assert counted(EVENTS, END) == 7


def test_what_the_answer_says_wins() -> None:
    assert counted(EVENTS, USAGE + END) == 19
    assert counted(b'{"choices": [], "usage": {"completion_tokens": 4}}', is_events=False) == 4


@given(st.integers(0, len(USAGE)))
def test_usage_that_is_cut_in_two_is_found(cut: int) -> None:
    assert counted(EVENTS, USAGE[:cut], USAGE[cut:] + END) == 19


def test_an_answer_without_usage_and_events_counts_nothing() -> None:
    assert counted(b"x" * 100_000, is_events=False) == 0
