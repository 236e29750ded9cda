"""What the gateway reads from a body: size, conversation and the prompt's beginning."""

from typing import Any

import pytest

from tidemill_gateway.ask import BLOCK_CHARACTERS, MAX_BLOCKS, read_ask

SYSTEM = "You are a careful assistant. " * 40


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    roles = ["system", "user", "assistant"]
    messages = [{"role": roles[min(i, 2)], "content": content} for i, content in enumerate(contents)]
    return {"model": "chat", "messages": messages, **fields}


def common(left: dict[str, Any], right: dict[str, Any]) -> int:
    pairs = zip(read_ask(left).prefix, read_ask(right).prefix, strict=False)
    return sum(a == b for a, b in pairs)


def test_prompts_with_one_beginning_share_its_whole_blocks_and_no_more() -> None:
    one, two = chat(SYSTEM, "x" * 2000), chat(SYSTEM, "y" * 2000)
    assert common(one, two) == len(SYSTEM) // BLOCK_CHARACTERS


def test_a_difference_at_the_start_changes_every_block() -> None:
    assert common(chat("a" + SYSTEM), chat("b" + SYSTEM)) == 0


def test_a_conversation_that_goes_on_keeps_its_blocks() -> None:
    before, after = chat(SYSTEM, "hello " * 100), chat(SYSTEM, "hello " * 100, "answer " * 100)
    assert read_ask(after).prefix[: len(read_ask(before).prefix)] == read_ask(before).prefix


def test_text_parts_count_as_the_text_that_they_hold() -> None:
    parts = [{"type": "text", "text": SYSTEM}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert read_ask(chat(parts)).prefix == read_ask(chat(SYSTEM)).prefix


def test_tenants_share_no_blocks() -> None:
    ours, theirs = read_ask(chat(SYSTEM), salt="a"), read_ask(chat(SYSTEM), salt="b")
    assert not set(ours.prefix) & set(theirs.prefix)


def test_a_long_prompt_is_hashed_up_to_a_bound_and_counted_whole() -> None:
    ask = read_ask({"prompt": "x" * 1_000_000})
    assert len(ask.prefix) == MAX_BLOCKS
    assert ask.num_prompt_tokens == 250_000


def test_token_ids_count_one_by_one() -> None:
    assert read_ask({"prompt": [5] * 77}).num_prompt_tokens == 77
    assert read_ask({"prompt": [[1, 2], [3]]}).num_prompt_tokens == 3
    assert read_ask({"prompt": list(range(1000))}).prefix != read_ask({"prompt": list(range(1, 1001))}).prefix


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"messages": 5, "prompt": {"a": 1}},
        {"messages": [None, 5, {"role": 7, "content": 9}], "tools": "x"},
        {"prompt": [None, {}], "user": 5, "stream": "yes"},
        {"prompt": "\ud800" * 600},
    ],
)
def test_what_is_no_openai_body_asks_for_little_and_fails_nothing(document: dict[str, Any]) -> None:
    ask = read_ask(document)
    assert not ask.is_stream
    assert ask.session == ""


def test_the_session_is_the_cache_key_or_else_the_user() -> None:
    assert read_ask(chat("hi", user="u")).session == "u"
    assert read_ask(chat("hi", user="u", prompt_cache_key="k")).session == "k"
