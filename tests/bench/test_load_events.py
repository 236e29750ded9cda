import json

from tidemill_bench.load.events import read_answer


def line(**event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


TOKEN = line(choices=[{"text": "x", "finish_reason": None}])


def test_an_event_counts_when_its_last_byte_has_come() -> None:
    answer = read_answer([(1.0, TOKEN[:10]), (2.0, TOKEN[10:] + TOKEN), (3.0, b"data: [DONE]\n\n")])
    assert answer.chunk_seconds == [2.0, 2.0]
    assert answer.is_done


def test_the_role_that_opens_a_chat_is_no_first_token() -> None:
    opening = line(choices=[{"delta": {"role": "assistant", "content": ""}}])
    text = line(choices=[{"delta": {"content": "hello"}}])
    ending = line(choices=[{"delta": {}, "finish_reason": "length"}])
    answer = read_answer([(1.0, opening), (2.0, text), (3.0, ending)])
    assert answer.chunk_seconds == [2.0]


def test_a_completion_chunk_without_text_counts_unless_it_only_ends_the_stream() -> None:
    half_a_character = line(choices=[{"text": "", "finish_reason": None}])
    ending = line(choices=[{"text": "", "finish_reason": "length"}])
    assert read_answer([(1.0, half_a_character), (2.0, ending)]).chunk_seconds == [1.0]


def test_usage_may_stand_in_any_event_and_null_is_none() -> None:
    answer = read_answer(
        [
            (1.0, line(choices=[{"text": "x", "finish_reason": None}], usage=None)),
            (2.0, line(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 9})),
        ]
    )
    assert (answer.prompt_tokens, answer.output_tokens) == (4, 9)


def test_carriage_returns_and_comments_are_no_hindrance() -> None:
    crlf = TOKEN.replace(b"\n", b"\r\n")
    assert read_answer([(1.0, b": ping\r\n\r\n" + crlf)]).chunk_seconds == [1.0]


def test_an_error_event_and_broken_json_end_the_answer_with_a_reason() -> None:
    assert "died" in (read_answer([(1.0, line(error={"message": "died"}) + TOKEN)]).error or "")
    broken = read_answer([(1.0, b"data: {nonsense\n\n")])
    assert "not JSON" in (broken.error or "")
