"""Which replica a request ends at: who is passed over, who is tried again, and what clients are told."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from gateway.builders import (
    CHAT,
    CHAT_PATH,
    answer,
    counted,
    make_pod,
    make_service,
    make_world,
    one_service,
    run_gateway,
    run_upstream,
    until,
)

CLOSED_PORT = 1  # nothing listens there


async def draining(request: web.Request) -> web.Response:
    return web.json_response({"error": {}}, status=503, headers={"x-tidemill-draining": "true"})


async def test_a_replica_that_can_not_be_reached_is_replaced_by_another_one() -> None:
    async with run_upstream(answer) as port, run_gateway(one_service(CLOSED_PORT, port)) as gateway:
        for _ in range(4):
            async with gateway.post(CHAT_PATH, json=CHAT) as response:
                assert response.status == 200
        labels = {"namespace": "default", "service": "chat", "reason": "unreachable"}
        # Once it has failed it is suspect and not asked again for a while.
        assert counted(gateway, "tidemill_gateway_upstream_retries_total", **labels) == 1


async def test_the_503_of_a_draining_replica_is_replayed_with_the_whole_body() -> None:
    async with (
        run_upstream(draining) as leaving,
        run_upstream(answer) as port,
        run_gateway(one_service(leaving, port)) as gateway,
    ):
        for _ in range(2):
            async with gateway.post(CHAT_PATH, json=CHAT) as response:
                assert response.status == 200
                assert (await response.json())["body"] == json.dumps(CHAT)


async def test_a_503_that_is_not_from_draining_is_passed_on() -> None:
    asked = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"error": {"message": "loading"}}, status=503)

    async with (
        run_upstream(handler) as port,
        run_gateway(one_service(port, port)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT) as response,
    ):
        assert response.status == 503
        assert (await response.json())["error"]["message"] == "loading"
    assert asked == 1


async def test_a_replica_that_fails_quickly_does_not_draw_all_requests() -> None:
    asked = 0

    async def failing(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"error": {}}, status=503)

    async with (
        run_upstream(failing) as broken,
        run_upstream(answer) as port,
        run_gateway(one_service(broken, port)) as gateway,
    ):
        codes = []
        for _ in range(8):
            async with gateway.post(CHAT_PATH, json=CHAT) as response:
                codes.append(response.status)
    assert asked <= 1
    assert codes.count(200) >= 7


async def test_a_replica_that_breaks_off_in_mid_stream_is_avoided_for_a_while() -> None:
    asked = 0

    async def breaking(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": []}\n\n')
        assert request.transport is not None
        request.transport.abort()
        return response

    async with (
        run_upstream(breaking) as broken,
        run_upstream(answer) as port,
        run_gateway(one_service(broken, port)) as gateway,
    ):
        bodies = []
        for _ in range(8):
            async with gateway.post(CHAT_PATH, json=CHAT) as response:
                bodies.append(await response.read())
    assert asked == 1
    assert sum(b"broke off" in body for body in bodies) == asked


async def test_a_stream_that_began_before_a_replica_failed_does_not_end_its_avoidance() -> None:
    may_end = asyncio.Event()
    num_failed = 0

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": []}\n\n')
        await may_end.wait()
        return response

    async def failing(request: web.Request) -> web.StreamResponse:
        nonlocal num_failed
        if "user" in await request.json():
            return await stream(request)
        num_failed += 1
        return web.json_response({"error": {}}, status=500)

    async def sound(request: web.Request) -> web.StreamResponse:
        return await (stream if "user" in await request.json() else answer)(request)

    async with run_upstream(failing) as broken, run_upstream(sound) as port:
        pods = [make_pod("broken", port=broken), make_pod("sound", port=port)]
        world = make_world([make_service(routing={"strategy": "LeastLoad"})], pods)
        long = CHAT | {"user": "long"}
        async with (
            run_gateway(world) as gateway,
            gateway.post(CHAT_PATH, json=long) as one,
            gateway.post(CHAT_PATH, json=long) as two,
        ):
            for _ in range(4):
                async with gateway.post(CHAT_PATH, json=CHAT) as response:
                    await response.read()
            assert num_failed == 1
            may_end.set()
            assert await one.read() == await two.read() == b'data: {"choices": []}\n\n'
            for _ in range(8):
                async with gateway.post(CHAT_PATH, json=CHAT) as response:
                    await response.read()
    assert num_failed == 1


async def test_when_every_replica_is_draining_the_client_is_told_to_come_again() -> None:
    async with (
        run_upstream(draining) as port,
        run_gateway(one_service(port, port)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT) as response,
    ):
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0
        assert (await response.json())["error"]["code"] == "no_ready_replica"
        assert "x-tidemill-draining" not in response.headers


async def test_when_no_replica_can_be_reached_the_client_gets_502() -> None:
    async with (
        run_gateway(one_service(CLOSED_PORT, CLOSED_PORT)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT) as response,
    ):
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "upstream_error"


async def test_without_a_ready_replica_the_client_gets_503_with_retry_after() -> None:
    world = make_world([make_service()], [make_pod(ready=False)])
    async with run_gateway(world) as gateway, gateway.post(CHAT_PATH, json=CHAT) as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0
        assert (await response.json())["error"]["code"] == "no_ready_replica"


@pytest.mark.parametrize("state", [{"routable": "false"}, {"terminating": True}, {"ready": False}])
async def test_replicas_that_leave_or_are_not_ready_get_no_requests(state: dict[str, Any]) -> None:
    async with run_upstream(answer) as port, run_upstream(draining) as other:
        pods = [make_pod("good", port=port), make_pod("bad", port=other, **state)]
        async with run_gateway(make_world([make_service()], pods)) as gateway:
            for _ in range(4):
                async with gateway.post(CHAT_PATH, json=CHAT) as response:
                    assert response.status == 200
            labels = {"namespace": "default", "service": "chat", "reason": "draining"}
            assert counted(gateway, "tidemill_gateway_upstream_retries_total", **labels) == 0


async def test_a_replica_that_breaks_off_before_it_answers_is_not_asked_twice() -> None:
    asked = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with (
        run_upstream(handler) as port,
        run_gateway(one_service(port, port)) as gateway,
        gateway.post(CHAT_PATH, json=CHAT) as response,
    ):
        assert response.status == 502
    assert asked == 1


async def test_requests_go_to_the_replica_with_the_fewest_in_flight() -> None:
    release = asyncio.Event()
    seen = [0, 0]

    def handler_of(index: int) -> Any:
        async def handler(request: web.Request) -> web.Response:
            seen[index] += 1
            await release.wait()
            return web.Response()

        return handler

    async with (
        run_upstream(handler_of(0)) as first,
        run_upstream(handler_of(1)) as second,
        run_gateway(one_service(first, second)) as gateway,
    ):

        async def ask() -> None:
            async with gateway.post(CHAT_PATH, json=CHAT) as response:
                assert response.status == 200

        tasks = [asyncio.ensure_future(ask()) for _ in range(8)]
        await until(lambda: sum(seen) == 8)
        assert seen == [4, 4]
        release.set()
        await asyncio.gather(*tasks)
