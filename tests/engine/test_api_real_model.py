"""The whole engine with the real model, asked by the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import openai
import pytest
import pytest_asyncio

from api_builders import read_event
from engine_process import EngineProcess, running_engine
from tidemill_engine.model_uri import parse_model_uri
from tidemill_engine.tokenizer import load_tokenizer

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

URI = "builtin://smollm2-135m"
MODEL = "smollm2-135m"
FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--num-kv-blocks", "256")
QUESTIONS = [
    "What is the capital of France?",
    "Name a colour.",
    "Say hello in Spanish.",
    "What is 2 + 2?",
    "Write one sentence about the sea.",
    "Who wrote Hamlet?",
    "List three fruits.",
    "What is water made of?",
    "Translate 'cat' to German.",
    "What day comes after Monday?",
    "Give me a short poem about a mill.",
    "Why is the sky blue?",
    "What is Python?",
    "Tell me a joke about a fish. " * 6,
    "Summarise: the tide turns the wheel, the wheel turns the stone. " * 4,
    "こんにちは、元気ですか。",
]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a streamed chat gave, put together."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    async with running_engine(URI, *FLAGS) as engine:
        yield engine


@pytest.fixture
def client(engine: EngineProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=240)


async def chat(client: openai.AsyncOpenAI, question: str, max_tokens: int = 8) -> Answer:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=max_tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, finish_reason, usage = "", None, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
    assert usage is not None
    return Answer(
        text=text,
        finish_reason=finish_reason,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


async def test_a_streamed_chat_is_sensible_and_counted_right(client: openai.AsyncOpenAI) -> None:
    answer = await chat(client, QUESTIONS[0])
    tokenizer = load_tokenizer(parse_model_uri(URI))
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
    assert answer.completion_tokens == len(tokenizer.encode(answer.text)) + 1  # and the end of turn
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = [("system", system), ("user", QUESTIONS[0])]
    rendered = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    assert answer.prompt_tokens == len(tokenizer.encode(rendered + "<|im_start|>assistant\n"))


async def test_sixteen_concurrent_streams_are_complete_and_the_same_as_alone(
    client: openai.AsyncOpenAI, engine: EngineProcess
) -> None:
    together = await asyncio.gather(*(chat(client, question) for question in QUESTIONS))
    compared = QUESTIONS[::3]
    assert together[::3] == [await chat(client, question) for question in compared]
    assert all(answer.finish_reason in {"stop", "length"} and answer.text for answer in together)
    stats = await engine.until_idle()
    assert stats["num_free_blocks"] == stats["num_total_blocks"]


async def test_text_and_its_token_ids_are_the_same_prompt_streamed_or_not(client: openai.AsyncOpenAI) -> None:
    prompt = "The quick brown fox jumps over the"
    ids = load_tokenizer(parse_model_uri(URI)).encode(prompt)
    whole = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=8)
    by_id = await client.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=8)
    stream = await client.completions.create(
        model=MODEL, prompt=prompt, temperature=0, max_tokens=8, stream=True
    )
    streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert whole.choices[0].text == by_id.choices[0].text == streamed
    assert whole.usage == by_id.usage


async def test_a_stop_string_cuts_the_text_and_ends_the_request(
    client: openai.AsyncOpenAI, engine: EngineProcess
) -> None:
    response = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        temperature=0,
        max_tokens=200,
        stop=["ance is"],
    )
    assert response.choices[0].message.content == "The capital of Fr"
    assert response.choices[0].finish_reason == "stop"
    stats = await engine.until_idle()
    assert stats["num_free_blocks"] == stats["num_total_blocks"]


async def test_the_same_seed_repeats_and_others_differ(client: openai.AsyncOpenAI) -> None:
    async def sample(seed: int | None) -> str:
        response = await client.completions.create(
            model=MODEL, prompt="Once upon a time", temperature=1.0, max_tokens=16, seed=seed
        )
        return response.choices[0].text

    first, again, other, free, free_again = await asyncio.gather(*map(sample, (1, 1, 2, None, None)))
    assert first == again
    assert len({first, other, free, free_again}) == 4


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(engine: EngineProcess, is_streamed: bool) -> None:
    body = {"prompt": "Count:", "max_tokens": 500, "ignore_eos": True, "stream": is_streamed, "n": 3}
    request = asyncio.create_task(engine.session.post(engine.url + "/v1/completions", json=body))
    if is_streamed:
        response = await request
        await read_event(response)
        response.close()
    else:
        await engine.until_stats(lambda stats: stats["num_running"] == 3)
        request.cancel()
    before = await engine.stats()
    stats = await engine.until_idle()
    assert stats["generation_tokens"] - before["generation_tokens"] < 3 * 250
    assert stats["num_free_blocks"] == stats["num_total_blocks"]


async def test_bad_requests_are_refused_by_name_and_the_next_one_works(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.completions.create(model="gpt-9", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        await client.completions.create(model=MODEL, prompt="x", max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="512") as too_long:
        await client.completions.create(model=MODEL, prompt=[5] * 512)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        await client.completions.create(model=MODEL, prompt="x", logit_bias={"49152": 1})
    answer = await chat(client, QUESTIONS[0])
    assert "Paris" in answer.text


async def test_max_tokens_is_clamped_to_the_context(client: openai.AsyncOpenAI) -> None:
    response = await client.completions.create(
        model=MODEL, prompt=[5] * 508, max_tokens=65535, extra_body={"ignore_eos": True}
    )
    assert response.choices[0].finish_reason == "length"
    assert response.usage is not None
    assert response.usage.completion_tokens == 4


async def test_log_probabilities_hold_the_chosen_token_and_the_likeliest(client: openai.AsyncOpenAI) -> None:
    response = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        temperature=0,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = response.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["The", " capital", " of"]
    for entry in logprobs.content:
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
