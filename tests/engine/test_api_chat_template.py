"""Chat templates: rendered in a bounded process, failing for their own request only."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from api_builders import running_api
from fake_core import spell
from tidemill_engine import sim_vocab
from tidemill_engine.api.chat_template import ChatTemplate
from tidemill_engine.api.protocol import ChatMessage
from tidemill_engine.errors import InvalidRequest
from tidemill_engine.tokenizer.sources import tokenizer_for_sim

HELLO = [ChatMessage(role="user", content="héllo")]


@asynccontextmanager
async def template(source: str | None, *, render_seconds: float = 30.0) -> AsyncIterator[ChatTemplate]:
    tokenizer = dataclasses.replace(tokenizer_for_sim(), chat_template=source)
    chat_template = ChatTemplate(tokenizer, render_seconds=render_seconds)
    try:
        yield chat_template
    finally:
        await chat_template.close()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}", "[user]héllo"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "héllo"}]'),
        ("{{ bos_token }}{{ eos_token }}", "<|bos|><|eos|>"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "héllo!"),
        ("{% if add_generation_prompt %}go{% endif %}{{ strftime_now('%%') }}", "go%"),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
    ],
)
async def test_templates_find_what_they_expect(source: str, text: str) -> None:
    async with template(source) as chat_template:
        assert await chat_template.render(HELLO) == text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "invalid"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "can't render"),
        ("{{ messages.append(1) }}", "can't render"),
        ("{{ undefined_thing.attribute }}", "can't render"),
        ("{{ 'x' * 3000000000 }}", "memory"),
        (None, "no chat template"),
    ],
)
async def test_a_template_that_fails_makes_the_request_invalid(source: str | None, reason: str) -> None:
    async with template(source) as chat_template:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=reason):
                await chat_template.render(HELLO)


async def test_a_template_that_does_not_end_is_killed_and_the_next_request_is_served() -> None:
    source = (
        "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}done"
    )
    async with template(source, render_seconds=1.0) as chat_template:
        await chat_template.start()
        with pytest.raises(InvalidRequest, match="longer than 1 s"):
            await chat_template.render([ChatMessage(role="user", content="loop")])
        assert await chat_template.render(HELLO) == "done"


async def test_a_template_that_writes_bos_itself_gives_one_bos() -> None:
    for source in ("<|bos|>{{ messages[0].content }}", "{{ messages[0].content }}"):
        async with running_api(spell("ok"), chat_template=source, adds_bos=True) as api:
            status, _ = await api.chat()
            assert status == 200
            ids = api.core.requests[0].prompt_token_ids
            assert ids[0] == sim_vocab.BOS
            assert ids.count(sim_vocab.BOS) == 1


async def test_an_empty_prompt_is_bos_alone_where_the_model_begins_with_one() -> None:
    async with running_api(spell("ok"), adds_bos=True) as api:
        status, _ = await api.complete(prompt="")
    assert status == 200
    assert api.core.requests[0].prompt_token_ids == [sim_vocab.BOS]
