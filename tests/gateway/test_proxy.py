"""The proxy against real sockets: upstreams and clients on loopback, synchronised by events."""

import asyncio
import contextlib
import json
import logging

import aiohttp
import pytest
from aiohttp import web

from gateway.builders import (
    CHAT,
    CHAT_PATH,
    RunningGateway,
    answer,
    counted,
    one_service,
    run_gateway,
    run_upstream,
    until,
)
from tidemill_gateway.parts import ServerConfig
from tidemill_gateway.proxy import ProxyConfig

CLOSED_PORT = 1  # nothing listens there


def requests_with(gateway: RunningGateway, code: str) -> float:
    return counted(gateway, "tidemill_gateway_requests_total", namespace="default", service="chat", code=code)


async def start_events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def test_a_request_reaches_the_replica_and_its_answer_the_client() -> None:
    async with run_upstream(answer) as port, run_gateway(one_service(port)) as gateway:
        async with gateway.post(f"{CHAT_PATH}?x=a%26b", json=CHAT) as response:
            assert response.status == 200
            assert await response.json() == {"path": CHAT_PATH, "query": "x=a%26b", "body": json.dumps(CHAT)}
        await gateway.traffic.wait_until_idle()
        assert requests_with(gateway, "200") == 1


async def test_the_first_chunk_arrives_before_the_replica_has_written_the_second() -> None:
    first_was_read = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start_events(request)
        await response.write(b"data: one\n\n")
        await first_was_read.wait()
        await response.write(b"data: two\n\n")
        return response

    async with (
        run_upstream(handler) as port,
        run_gateway(one_service(port)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT) as response,
    ):
        assert await response.content.readany() == b"data: one\n\n"
        first_was_read.set()
        assert await response.read() == b"data: two\n\n"
        assert response.headers["X-Accel-Buffering"] == "no"


async def test_a_client_that_leaves_cancels_the_replicas_request() -> None:
    cancelled = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start_events(request)
        await response.write(b"data: one\n\n")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return response

    async with run_upstream(handler) as port, run_gateway(one_service(port)) as gateway:
        async with gateway.post(CHAT_PATH, json=CHAT) as response:
            await response.content.readany()
            response.close()
            await cancelled.wait()
        await gateway.traffic.wait_until_idle()
        await until(lambda: requests_with(gateway, "499") == 1)
        assert counted(gateway, "tidemill_gateway_requests_in_flight") == 0


async def test_a_client_that_leaves_before_the_first_byte_cancels_the_replicas_request() -> None:
    arrived, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with run_upstream(handler) as port, run_gateway(one_service(port)) as gateway:
        task = asyncio.ensure_future(gateway.client.post(gateway.url(CHAT_PATH), json=CHAT))
        await arrived.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await cancelled.wait()


async def test_a_stream_that_breaks_ends_with_an_error_event_and_is_not_tried_again() -> None:
    asked = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        response = await start_events(request)
        await response.write(b"data: one\n\n")
        assert request.transport is not None
        request.transport.close()
        return response

    async with run_upstream(handler) as port, run_gateway(one_service(port, port)) as gateway:
        async with gateway.post(CHAT_PATH, json=CHAT) as response:
            events = (await response.text()).split("\n\n")
        assert events[0] == "data: one"
        assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "upstream_error"
        await gateway.traffic.wait_until_idle()
        labels = {"namespace": "default", "service": "chat", "by": "replica"}
        await until(lambda: counted(gateway, "tidemill_gateway_streams_cut_total", **labels) == 1)
    assert asked == 1


async def test_a_plain_answer_that_breaks_is_cut_so_that_the_client_notices() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100", "Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"half":')
        assert request.transport is not None
        request.transport.close()
        return response

    async with run_upstream(handler) as port, run_gateway(one_service(port)) as gateway:
        with pytest.raises(aiohttp.ClientError):
            async with gateway.post(CHAT_PATH, json=CHAT) as response:
                await response.read()


async def test_a_silent_replica_ends_in_504() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    config = ServerConfig(proxy=ProxyConfig(idle_timeout_seconds=0.05))
    async with (
        run_upstream(handler) as port,
        run_gateway(one_service(port), config) as gateway,
        gateway.post(CHAT_PATH, json=CHAT) as response,
    ):
        assert response.status == 504
        assert (await response.json())["error"]["code"] == "upstream_timeout"


async def test_a_client_that_does_not_read_is_let_go_and_the_replica_with_it() -> None:
    cancelled = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start_events(request)
        try:
            while True:
                await response.write(b"x" * 100_000)
        finally:
            cancelled.set()

    config = ServerConfig(proxy=ProxyConfig(write_timeout_seconds=0.1))
    async with run_upstream(handler) as port, run_gateway(one_service(port), config) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1)
        body = json.dumps(CHAT)
        writer.write(
            f"POST {CHAT_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await cancelled.wait()
        labels = {"namespace": "default", "service": "chat", "by": "client"}
        await until(lambda: counted(gateway, "tidemill_gateway_streams_cut_total", **labels) == 1)
        writer.close()
        del reader


async def test_headers_of_one_connection_and_private_ones_stay_behind() -> None:
    got: dict[str, str] = {}

    async def handler(request: web.Request) -> web.Response:
        got.update({name.lower(): value for name, value in request.headers.items()})
        headers = {
            "Connection": "x-hop",
            "X-Hop": "1",
            "X-Tidemill-Secret": "1",
            "X-Kept": "yes",
            "Server": "engine",
        }
        return web.Response(headers=headers)

    sent = {
        "Authorization": "Bearer key",
        "Connection": "x-client-hop",
        "X-Client-Hop": "1",
        "TE": "trailers",
        "X-Tidemill-Tenant": "forged",
        "X-Request-Id": "given-id",
        "X-Forwarded-For": "10.1.1.1",
    }
    async with (
        run_upstream(handler) as port,
        run_gateway(one_service(port)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT, headers=sent) as response,
    ):
        back = {name.lower(): value for name, value in response.headers.items()}
    assert got["authorization"] == "Bearer key"
    assert got["x-request-id"] == back["x-request-id"] == "given-id"
    assert got["x-forwarded-for"] == "10.1.1.1, 127.0.0.1"
    assert got["content-type"] == "application/json"
    assert not {"x-client-hop", "te", "x-tidemill-tenant"} & got.keys()
    assert back["x-kept"] == "yes"
    assert not {"x-hop", "x-tidemill-secret"} & back.keys()


@pytest.mark.parametrize("given", ["", "has space", "x" * 200, 'quote"'])
async def test_a_request_id_that_is_missing_or_odd_is_replaced(given: str) -> None:
    async with (
        run_upstream(answer) as port,
        run_gateway(one_service(port)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT, headers={"X-Request-Id": given}) as response,
    ):
        assert len(response.headers["X-Request-Id"]) == 32


async def test_a_compressed_answer_is_passed_on_as_it_is() -> None:
    async def handler(request: web.Request) -> web.Response:
        response = web.Response(text="hello " * 500)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    async with (
        run_upstream(handler) as port,
        run_gateway(one_service(port)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT, headers={"Accept-Encoding": "gzip"}) as response,
    ):
        assert response.headers["Content-Encoding"] == "gzip"
        assert await response.text() == "hello " * 500


async def test_logs_name_the_request_and_neither_keys_nor_bodies(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with run_upstream(answer) as port, run_gateway(one_service(port)) as gateway:
        for model in ("chat", "secret-model"):
            headers = {"Authorization": "Bearer secret-key", "X-Request-Id": "trace-me"}
            body = {"model": model, "messages": "secret-text"}
            async with gateway.post(f"{CHAT_PATH}?key=secret-query", json=body, headers=headers):
                pass
        await gateway.traffic.wait_until_idle()
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("tidemill"))
    assert "trace-me" in ours
    assert "replica=chat-0" in ours
    assert "secret" not in ours
