import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidemill_bench.load.client import Api, Endpoint, LoadError, knows_ignore_eos, run_load
from tidemill_bench.load.workload import PlannedRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_requests(count: int, output_tokens: int = 3, due: float | None = None) -> list[PlannedRequest]:
    return [
        PlannedRequest(index=i, prompt_token_ids=(300, 301), output_tokens=output_tokens, due_seconds=due)
        for i in range(count)
    ]


async def serve(handler: Handler, api: Api = "completions") -> tuple[TestServer, Endpoint]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    app.router.add_post("/v1/chat/completions", handler)
    server = TestServer(app)
    await server.start_server()
    return server, Endpoint(base_url=str(server.make_url("/v1")), model="m", api=api)


def stream_of(*events: object, is_done: bool = True) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if is_done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return handler


TOKEN = {"choices": [{"text": "x"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}


async def test_records_every_chunk_and_the_usage() -> None:
    server, endpoint = await serve(stream_of(TOKEN, TOKEN, USAGE))
    async with server:
        records = await run_load(endpoint, make_requests(5), concurrency=2)
    assert [record.index for record in records] == [0, 1, 2, 3, 4]
    assert all(record.failure is None and len(record.chunk_seconds) == 2 for record in records)
    assert {(record.prompt_tokens, record.output_tokens) for record in records} == {(2, 3)}


async def test_never_has_more_requests_in_flight_than_the_concurrency() -> None:
    in_flight, most, all_in = 0, 0, asyncio.Event()
    answer = stream_of(TOKEN, USAGE)

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        if in_flight == 3:
            all_in.set()
        await all_in.wait()
        response = await answer(request)
        in_flight -= 1
        return response

    server, endpoint = await serve(handler)
    async with server:
        records = await run_load(endpoint, make_requests(9), concurrency=3)
    assert len(records) == 9
    assert most == 3


async def test_an_open_loop_sends_what_is_due_however_many_are_in_flight() -> None:
    in_flight, all_in = 0, asyncio.Event()
    answer = stream_of(TOKEN, USAGE)

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal in_flight
        in_flight += 1
        if in_flight == 20:
            all_in.set()
        await all_in.wait()  # nobody is answered before all twenty have come
        return await answer(request)

    server, endpoint = await serve(handler)
    async with server:
        records = await run_load(endpoint, make_requests(20, due=0.0), concurrency=None)
    assert all(record.failure is None for record in records)


async def test_latencies_count_from_when_a_request_was_due_and_not_from_when_it_was_sent() -> None:
    server, endpoint = await serve(stream_of(TOKEN, USAGE))
    async with server:
        (record,) = await run_load(endpoint, make_requests(1, due=-5.0), concurrency=None)
    assert record.due_seconds == pytest.approx(-5.0)
    assert record.sent_seconds >= 0.0


async def test_a_failure_becomes_a_record_with_its_kind_and_the_others_go_on() -> None:
    async def busy(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=429)

    async def broken(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "oh"}}, status=500)

    for handler, kind, text in (
        (busy, "refused", "HTTP 429"),
        (broken, "http", "HTTP 500"),
        (stream_of(TOKEN, is_done=False), "stream", "before [DONE]"),
        (stream_of({"error": {"message": "core died"}}), "event", "core died"),
        (stream_of(TOKEN, {"choices": [], "usage": {"completion_tokens": 1}}), "length", "usage says 1"),
    ):
        server, endpoint = await serve(handler)
        async with server:
            records = await run_load(endpoint, make_requests(2), concurrency=1)
        assert len(records) == 2
        for record in records:
            assert record.failure is not None
            assert record.failure.kind == kind
            assert text in record.failure.message


async def test_a_server_that_is_not_there_is_a_connection_failure() -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", model="m")
    (record,) = await run_load(endpoint, make_requests(1), concurrency=1)
    assert record.failure is not None
    assert record.failure.kind == "connection"


async def test_a_broken_connection_is_tried_anew_only_where_asked_for_and_nothing_came_back() -> None:
    answer = stream_of(TOKEN, TOKEN, TOKEN, {"choices": [], "usage": {"completion_tokens": 3}})
    calls: list[int] = []

    async def breaks_twice(request: web.Request) -> web.StreamResponse:
        calls.append(1)
        if len(calls) % 3:
            assert request.transport is not None
            request.transport.close()
        return await answer(request)

    async def breaks_in_the_stream(request: web.Request) -> web.StreamResponse:
        calls.append(1)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.close()
        return response

    for handler, resends, kind, num_calls in (
        (breaks_twice, 2, None, 3),
        (breaks_twice, 1, "connection", 2),
        (breaks_in_the_stream, 2, "stream", 1),
    ):
        calls.clear()
        server, endpoint = await serve(handler)
        async with server:
            (record,) = await run_load(replace(endpoint, resends=resends), make_requests(1), concurrency=1)
        assert (record.failure.kind if record.failure else None) == kind
        assert len(calls) == num_calls


async def test_sends_the_key_as_a_bearer_token_and_never_shows_it() -> None:
    seen: list[str | None] = []
    answer = stream_of(TOKEN, USAGE)

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get(aiohttp.hdrs.AUTHORIZATION))
        return await answer(request)

    server, endpoint = await serve(handler)
    async with server:
        keyed = Endpoint(base_url=endpoint.base_url, model="m", api_key="k1")
        await run_load(keyed, make_requests(1), concurrency=1)
    assert seen == ["Bearer k1"]
    assert "k1" not in repr(keyed)


async def test_a_chat_gets_a_message_with_a_word_for_each_token() -> None:
    bodies: list[dict[str, Any]] = []
    answer = stream_of({"choices": [{"delta": {"role": "assistant"}}]}, USAGE)

    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await answer(request)

    server, endpoint = await serve(handler, "chat")
    async with server:
        await run_load(endpoint, make_requests(1), concurrency=1)
    (message,) = bodies[0]["messages"]
    assert len(message["content"].split()) == 2
    assert "prompt" not in bodies[0]


async def test_asks_a_server_whether_it_knows_ignore_eos() -> None:
    async def strict(request: web.Request) -> web.StreamResponse:
        status = 400 if "ignore_eos" in await request.json() else 200
        return web.json_response({}, status=status)

    async def refusing(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no such model"}, status=404)

    for handler, expected in ((strict, False), (stream_of(TOKEN, USAGE), True)):
        server, endpoint = await serve(handler)
        async with server:
            assert await knows_ignore_eos(endpoint) is expected
    server, endpoint = await serve(refusing)
    async with server:
        with pytest.raises(LoadError, match="no such model"):
            await knows_ignore_eos(endpoint)
