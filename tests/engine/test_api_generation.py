"""The OpenAI endpoints over HTTP, in front of a fake core."""

from __future__ import annotations

from api_builders import running_api
from fake_core import spell, tokens_of


async def test_a_completion_returns_text_usage_and_finish_reason() -> None:
    async with running_api(spell("hello")) as api:
        status, body = await api.complete(prompt="abc")
    assert status == 200
    assert body["object"] == "text_completion"
    assert body["model"] == "test"
    assert body["choices"][0]["text"] == "hello"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == 8


async def test_a_chat_stream_opens_with_the_role_and_ends_with_finish_usage_and_done() -> None:
    async with running_api(spell("hi 😀!")) as api:
        events = await api.stream(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "x"}],
            stream_options={"include_usage": True},
        )
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == len(tokens_of("hi 😀!"))
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert events[-3]["choices"][0]["delta"] == {}
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-2])
    assert text == "hi 😀!"
    assert all(event["usage"] is None for event in events[:-2])
