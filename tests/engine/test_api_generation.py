"""The OpenAI endpoints over HTTP, in front of a fake core."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable

import openai
import pytest

from api_builders import make_serve_config, parse_events, read_event, running_api
from fake_core import make_ready, spell, tokens_of
from tidemill_engine.api.config import HttpConfig
from tidemill_engine.messages import EngineRequest, RequestOutput, TokenLogprobs
from tidemill_engine.tokenizer.sources import tokenizer_for_sim

TOKENIZER = tokenizer_for_sim()


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


async def test_usage_is_sent_only_when_asked_for_and_with_no_choices() -> None:
    async with running_api(spell("ok")) as api:
        plain = await api.stream("/v1/completions", prompt="x", n=2)
        counted = await api.stream("/v1/completions", prompt="x", n=2, stream_options={"include_usage": True})
    assert not any("usage" in event for event in plain[:-1])
    assert [event["usage"] for event in counted[:-2]] == [None] * len(counted[:-2])
    assert counted[-2]["choices"] == []
    assert counted[-2]["usage"]["completion_tokens"] == 4
    assert {event["choices"][0]["index"] for event in counted[:-2]} == {0, 1}
    assert counted[-3]["choices"][0]["finish_reason"] == "stop"


async def test_n_and_several_prompts_give_choices_in_order() -> None:
    def script(request: EngineRequest) -> Iterable[RequestOutput]:
        name = TOKENIZER.decode(request.prompt_token_ids)
        return spell(f"{name}{request.sibling}")(request)

    async with running_api(script) as api:
        status, body = await api.complete(prompt=["a", "b"], n=2)
    assert status == 200
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 8


async def test_a_stop_string_ends_the_request_in_the_core() -> None:
    async with running_api(spell("abcSTOPdef")) as api:
        status, body = await api.complete(prompt="x", stop="STOP")
        assert api.context.client.num_in_flight == 0
        streamed = await api.stream("/v1/completions", prompt="x", stop=["STOP"])
    assert status == 200
    assert body["choices"][0]["text"] == "abc"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 7
    assert "".join(event["choices"][0]["text"] for event in streamed[:-1]) == "abc"


async def test_a_stop_string_aborts_a_sequence_that_still_runs() -> None:
    async with running_api() as api:
        task = asyncio.create_task(api.complete(prompt="x", stop="B"))
        await api.core.until(lambda core: bool(core.requests))
        request_id = api.core.requests[0].request_id
        await api.core.send(RequestOutput(request_id=request_id, token_ids=tokens_of("aBc")))
        status, body = await task
        await api.core.until(lambda core: bool(core.aborted))
    assert (status, body["choices"][0]["text"]) == (200, "a")
    assert api.core.aborted == [request_id]


async def test_the_core_gets_ids_sampling_and_a_clamped_max_tokens() -> None:
    async with running_api(spell("a")) as api:
        sampling = {"temperature": 0.5, "top_k": 9, "seed": 4, "stop_token_ids": [8]}
        await api.complete(prompt=[5, 6, 7], max_tokens=10_000, **sampling)
    request = api.core.requests[0]
    assert request.prompt_token_ids == [5, 6, 7]
    sent = request.sampling
    assert (sent.temperature, sent.top_k, sent.seed, sent.stop_token_ids) == (0.5, 9, 4, (8,))
    assert sent.max_tokens == 256 - 3


async def test_echo_repeats_the_prompt_and_alone_needs_no_core() -> None:
    async with running_api(spell("world")) as api:
        _, body = await api.complete(prompt="hello ", echo=True)
        _, alone = await api.complete(prompt="hello ", echo=True, max_tokens=0)
        events = await api.stream("/v1/completions", prompt="hello ", echo=True)
    assert body["choices"][0]["text"] == "hello world"
    assert alone["choices"][0]["text"] == "hello "
    assert alone["usage"]["completion_tokens"] == 0
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "hello world"
    assert len(api.core.requests) == 2


async def test_logprobs_are_written_in_the_shape_of_each_endpoint() -> None:
    def script(request: EngineRequest) -> Iterable[RequestOutput]:
        a, b = tokens_of("ab")
        position = TokenLogprobs(token_ids=[a, a, b], logprobs=[-0.1, -0.1, float("-inf")])
        yield RequestOutput(
            request_id=request.request_id, token_ids=[a], logprobs=[position], finish_reason="length"
        )

    async with running_api(script) as api:
        _, completion = await api.complete(prompt="x", logprobs=2)
        _, chat = await api.chat(logprobs=True, top_logprobs=2)
    assert completion["choices"][0]["logprobs"] == {
        "tokens": ["a"],
        "token_logprobs": [-0.1],
        "top_logprobs": [{"a": -0.1, "b": -9999.0}],
        "text_offset": [0],
    }
    (entry,) = chat["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -0.1, [97])
    assert [top["token"] for top in entry["top_logprobs"]] == ["a", "b"]


async def test_tokens_that_wait_for_a_slow_client_go_out_together() -> None:
    async with running_api() as api:
        opening = api.open_stream(prompt="x")
        await api.core.until(lambda core: bool(core.requests))
        request_id = api.core.requests[0].request_id
        outputs = [RequestOutput(request_id=request_id, token_ids=[i]) for i in tokens_of("hello")]
        await api.core.send(
            *outputs, RequestOutput(request_id=request_id, token_ids=[], finish_reason="stop")
        )
        events = parse_events(await (await opening).read())
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["hello"]


async def test_a_character_split_over_tokens_is_streamed_whole() -> None:
    async with running_api(spell("日本 😀 é")) as api:
        events = await api.stream("/v1/completions", prompt="x", max_tokens=50)
    texts = [event["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == "日本 😀 é"
    assert not any("\ufffd" in text for text in texts)


async def test_a_failed_sequence_fails_its_request_and_nothing_else() -> None:
    def script(request: EngineRequest) -> Iterable[RequestOutput]:
        if request.sampling.seed == 13:
            bad = RequestOutput(
                request_id=request.request_id, token_ids=[], finish_reason="error", error="logits were NaN"
            )
            return [bad]
        return spell("fine")(request)

    async with running_api(script) as api:
        status, body = await api.complete(prompt="x", seed=13, n=2)
        ok_status, ok = await api.complete(prompt="x")
    assert (status, body["error"]["message"]) == (500, "logits were NaN")
    assert (ok_status, ok["choices"][0]["text"]) == (200, "fine")


async def test_a_failure_after_the_first_token_becomes_the_last_event_of_the_stream() -> None:
    async with running_api() as api:
        opening = api.open_stream(prompt="x")
        await api.send_tokens(0, "a")
        response = await opening
        assert (await read_event(response))["choices"][0]["text"] == "a"
        request_id = api.core.requests[0].request_id
        await api.core.send(
            RequestOutput(request_id=request_id, token_ids=[], finish_reason="error", error="broken")
        )
        events = parse_events(await response.read())
    assert [event["error"]["message"] for event in events] == ["broken"]


async def test_when_the_core_dies_an_open_stream_gets_an_error_event_and_other_requests_503() -> None:
    async with running_api() as api:
        opening = api.open_stream(prompt="x")
        await api.send_tokens(0, "a")
        stream = await opening
        await read_event(stream)
        whole = asyncio.create_task(api.complete(prompt="y"))
        await api.core.until(lambda core: len(core.requests) == 2)
        await api.core.die()
        events = parse_events(await stream.read())
        status, error = await whole
        later, _ = await api.complete(prompt="x")
    assert [event["error"]["code"] for event in events] == ["engine_died"]
    assert (status, error["error"]["code"]) == (503, "engine_died")
    assert later == 503


async def test_the_official_client_raises_when_a_stream_can_not_go_on() -> None:
    async with running_api() as api:
        client = openai.AsyncOpenAI(base_url=api.url + "/v1", api_key="none", max_retries=0)
        opening = asyncio.create_task(client.completions.create(model="test", prompt="x", stream=True))
        await api.send_tokens(0, "a")
        stream = await opening
        assert (await anext(aiter(stream))).choices[0].text == "a"
        await api.core.die()
        with pytest.raises(openai.APIError, match="core has died"):
            await anext(aiter(stream))
        await client.close()


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_aborts_all_its_sequences(is_streamed: bool) -> None:
    async with running_api() as api:
        body = {"model": "test", "prompt": "x", "stream": is_streamed, "n": 4, "max_tokens": 200}
        task = asyncio.create_task(api.session.post(api.url + "/v1/completions", json=body))
        await api.core.until(lambda core: len(core.requests) == 4)
        if is_streamed:
            first = api.core.requests[0].request_id
            await api.core.send(RequestOutput(request_id=first, token_ids=tokens_of("a")))
            (await task).close()
        else:
            task.cancel()
        await api.core.until(lambda core: len(core.aborted) == 4)
        assert sorted(api.core.aborted) == sorted(request.request_id for request in api.core.requests)
        assert api.context.client.num_in_flight == 0


async def test_a_client_that_stops_reading_is_given_up() -> None:
    config = make_serve_config(http=HttpConfig(port=0, write_timeout_seconds=0.05))
    async with running_api(config=config, ready=make_ready(max_model_len=10**7, num_blocks=10**6)) as api:
        body = json.dumps({"prompt": "x", "stream": True, "max_tokens": 9 * 10**6}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(api.url.rpartition(":")[2])))
            client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            while not api.core.aborted:
                await api.send_tokens(0, "x" * 1000)
                await asyncio.sleep(0)
    assert api.core.aborted == [api.core.requests[0].request_id]


async def test_more_requests_than_the_queue_holds_are_refused_with_retry_after() -> None:
    config = make_serve_config(max_queued_requests=1)
    async with running_api(config=config, ready=make_ready(max_num_seqs=1)) as api:
        waiting = [asyncio.create_task(api.complete(prompt="x")) for _ in range(2)]
        await api.core.until(lambda core: len(core.requests) == 2)
        body = {"model": "test", "prompt": "x"}
        async with api.session.post(api.url + "/v1/completions", json=body) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.json())["error"]["code"] == "overloaded"
        # A pod that is not ready is the first that Kubernetes deletes: the busiest must stay ready.
        assert (await api.get("/health/ready"))[0] == 200
        for request in api.core.requests:
            await api.core.send(
                RequestOutput(request_id=request.request_id, token_ids=tokens_of("a"), finish_reason="stop")
            )
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]
