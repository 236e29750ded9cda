import asyncio
import json
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidemill_bench.load import Endpoint, run_load
from tidemill_bench.workload import PlannedRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_requests(count: int, output_tokens: int = 3) -> list[PlannedRequest]:
    return [
        PlannedRequest(index=i, prompt_token_ids=(300, 301), output_tokens=output_tokens)
        for i in range(count)
    ]


async def serve(handler: Handler) -> tuple[TestServer, Endpoint]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    server = TestServer(app)
    await server.start_server()
    return server, Endpoint(base_url=str(server.make_url("/v1")), model="m")


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
    assert all(record.error is None and len(record.chunk_seconds) == 2 for record in records)
    assert {(record.prompt_tokens, record.output_tokens) for record in records} == {(2, 3)}


async def test_never_has_more_requests_in_flight_than_the_concurrency() -> None:
    in_flight, most, both = 0, 0, asyncio.Event()
    answer = stream_of(TOKEN, USAGE)

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        if in_flight == 3:
            both.set()
        await both.wait()
        response = await answer(request)
        in_flight -= 1
        return response

    server, endpoint = await serve(handler)
    async with server:
        records = await run_load(endpoint, make_requests(9), concurrency=3)
    assert len(records) == 9
    assert most == 3


async def test_a_failure_becomes_a_record_and_the_others_go_on() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=429)

    for handler, text in (
        (refuse, "HTTP 429"),
        (stream_of(TOKEN, is_done=False), "before [DONE]"),
        (stream_of({"error": {"message": "core died"}}), "core died"),
        (
            stream_of(TOKEN, {"choices": [], "usage": {"completion_tokens": 1}}),
            "asked for 3 tokens, usage says 1",
        ),
    ):
        server, endpoint = await serve(handler)
        async with server:
            records = await run_load(endpoint, make_requests(2), concurrency=1)
        assert len(records) == 2
        assert all(record.error is not None and text in record.error for record in records)


async def test_sends_the_key_as_a_bearer_token() -> None:
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
