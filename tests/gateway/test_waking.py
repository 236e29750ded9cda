"""Requests for services without replicas: held, woken for, answered, or told to come again; never 404."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from gateway.builders import (
    RunningGateway,
    make_link,
    make_pod,
    make_service,
    make_world,
    parsed_service,
    run_gateway,
    run_upstream,
    until,
)
from tidemill_gateway.api_error import ApiError
from tidemill_gateway.objects import Kind, parse
from tidemill_gateway.parts import ServerConfig
from tidemill_gateway.waiting_room import WaitingConfig
from tidemill_gateway.world import World, put, remove

PATH = "/default/chat/v1/chat/completions"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**CHAT, "stream": True}
ZERO = {"minReplicas": 0, "maxReplicas": 4, "scaleToZero": {"activationTimeout": "1m"}}


class Writer:
    """Stands for the API server; remembers what was applied."""

    def __init__(self, *, num_failures: int = 0, failure: Exception | None = None) -> None:
        self.failure = failure or ApiError(503, "not now")
        self.applied: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self.num_failures = num_failures

    async def apply_status(self, manifest: dict[str, Any]) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise self.failure
        self.applied.append(manifest)
        self.asked.set()


def at_zero(**changes: Any) -> World:
    scaling = {**ZERO, "scaleToZero": {**ZERO["scaleToZero"], **changes}}  # type: ignore[dict-item]
    return make_world([make_service(scaling=scaling)])


def wake(gateway: RunningGateway, port: int, name: str = "chat-1") -> None:
    gateway.state.update(put(gateway.state.world, Kind.PODS, parse(Kind.PODS, make_pod(name, port=port))))


def held(gateway: RunningGateway) -> int:
    return gateway.demand.of(("default", "chat")).held_requests


async def status_of(gateway: RunningGateway, body: Any = CHAT, **arguments: Any) -> tuple[int, Any]:
    async with gateway.post(PATH, json=body, **arguments) as response:
        return response.status, response.headers.get("Retry-After")


async def last_event_behind_a_comment(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
    """Wake a replica that answers so once a stream has its first comment; return the last event's data."""
    config = ServerConfig(waiting=WaitingConfig(keep_alive_seconds=0.01))
    async with (
        run_upstream(handler) as port,
        run_gateway(at_zero(), config, writer=Writer()) as gateway,
        gateway.post(PATH, json=STREAM) as response,
    ):
        await response.content.readany()
        wake(gateway, port)
        text: str = await response.text()
        return text.strip().splitlines()[-1].removeprefix("data: ")


async def answer(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


async def events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"n": 1}\n\ndata: [DONE]\n\n')
    return response


async def test_a_request_for_a_service_at_zero_is_held_woken_and_answered() -> None:
    writer = Writer()
    async with run_upstream(answer) as port, run_gateway(at_zero(), writer=writer) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await writer.asked.wait()
        assert held(gateway) == 1
        wake(gateway, port)
        assert await asking == (200, None)
        assert held(gateway) == 0
    manifest = writer.applied[0]
    assert manifest["metadata"] == {"name": "chat", "namespace": "default", "uid": "service-default-chat"}
    assert set(manifest["status"]) == {"activation"}
    assert manifest["status"]["activation"]["requestTime"].endswith("Z")


async def test_two_hundred_at_once_make_one_activation_and_beyond_the_buffer_get_429() -> None:
    writer = Writer()
    async with (
        run_upstream(answer) as port,
        run_gateway(at_zero(maxBufferedRequests=100), writer=writer) as gateway,
    ):
        asking = [asyncio.ensure_future(status_of(gateway)) for _ in range(200)]
        await until(lambda: sum(task.done() for task in asking) == 100)
        assert held(gateway) == 100
        wake(gateway, port)
        results = await asyncio.gather(*asking)
        assert len(writer.applied) == 1
    assert sorted(status for status, _ in results) == [200] * 100 + [429] * 100
    assert all(int(retry) > 0 for status, retry in results if status == 429)


async def test_the_buffer_is_split_between_the_gateways() -> None:
    world = at_zero(maxBufferedRequests=5)
    for name in ("gateway-1", "gateway-2"):
        world = put(world, Kind.GATEWAYS, parse(Kind.GATEWAYS, make_pod(name, "home")))
    async with run_upstream(answer) as port, run_gateway(world, writer=Writer()) as gateway:
        asking = [asyncio.ensure_future(status_of(gateway)) for _ in range(5)]
        await until(lambda: sum(task.done() for task in asking) == 2)
        wake(gateway, port)
        assert sorted(status for status, _ in await asyncio.gather(*asking)) == [200, 200, 200, 429, 429]


async def test_a_service_that_does_not_wake_in_time_gets_503_with_retry_after() -> None:
    async with (
        run_gateway(at_zero(activationTimeout="50ms"), writer=Writer()) as gateway,
        gateway.post(PATH, json=CHAT) as response,
    ):
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0
        assert (await response.json())["error"]["code"] == "activation_timeout"


async def test_a_client_that_gives_up_frees_its_place() -> None:
    async with (
        run_upstream(answer) as port,
        run_gateway(at_zero(maxBufferedRequests=1), writer=Writer()) as gateway,
    ):
        first = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        assert (await status_of(gateway))[0] == 429
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await until(lambda: held(gateway) == 0)
        second = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        wake(gateway, port)
        assert await second == (200, None)


async def test_a_stream_that_waits_is_kept_alive_by_comments_and_then_streams() -> None:
    config = ServerConfig(waiting=WaitingConfig(keep_alive_seconds=0.01))
    async with (
        run_upstream(events) as port,
        run_gateway(at_zero(), config, writer=Writer()) as gateway,
        gateway.post(PATH, json=STREAM) as response,
    ):
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        assert (await response.content.readany()).startswith(b": ")
        wake(gateway, port)
        lines = [line for line in (await response.text()).splitlines() if line and not line.startswith(":")]
        assert lines == ['data: {"n": 1}', "data: [DONE]"]


async def test_an_error_after_the_first_comment_arrives_as_an_event() -> None:
    config = ServerConfig(waiting=WaitingConfig(keep_alive_seconds=0.01))
    async with (
        run_gateway(at_zero(activationTimeout="50ms"), config, writer=Writer()) as gateway,
        gateway.post(PATH, json=STREAM) as response,
    ):
        assert response.status == 200
        last = (await response.text()).strip().splitlines()[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "activation_timeout"


async def test_a_replicas_plain_error_after_the_first_comment_arrives_as_an_event() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": "too_long"}}, status=400)

    assert json.loads(await last_event_behind_a_comment(refuse)) == {"error": {"code": "too_long"}}


async def test_a_replica_that_breaks_off_in_a_plain_answer_after_the_first_comment_is_told_of() -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=400, headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"half":')
        assert request.transport is not None
        request.transport.close()
        return response

    error = json.loads(await last_event_behind_a_comment(break_off))["error"]
    assert error["message"].startswith("The replica broke off")


async def test_an_error_that_comes_in_pieces_after_the_first_comment_is_one_event() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=400, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in (b'{"error": {"co', b'de": "too_long"}}'):
            await response.write(piece)
            for _ in range(50):  # until the gateway has read it
                await asyncio.sleep(0)
        await response.write_eof()
        return response

    assert json.loads(await last_event_behind_a_comment(refuse)) == {"error": {"code": "too_long"}}


async def test_a_gateway_that_goes_away_tells_those_who_wait_to_come_again() -> None:
    async with run_gateway(at_zero(), writer=Writer()) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        gateway.waiting.close()
        assert await asking == (503, "1")
        assert await status_of(gateway) == (503, "1")


@pytest.mark.parametrize("failure", [ApiError(503, "not now"), FileNotFoundError("no token"), KeyError("x")])
async def test_asking_to_wake_is_repeated_until_it_has_been_heard(failure: Exception) -> None:
    writer = Writer(num_failures=1, failure=failure)
    async with run_upstream(answer) as port, run_gateway(at_zero(), writer=writer) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await writer.asked.wait()
        wake(gateway, port)
        assert await asking == (200, None)


async def test_a_suspended_service_is_not_waited_for() -> None:
    writer = Writer()
    world = make_world([make_service(scaling=ZERO, suspend=True)])
    async with run_gateway(world, writer=writer) as gateway:
        assert (await status_of(gateway))[0] == 503
    assert not writer.applied


def suspend(gateway: RunningGateway) -> None:
    service = parse(Kind.SERVICES, make_service(scaling=ZERO, suspend=True))
    gateway.state.update(put(gateway.state.world, Kind.SERVICES, service))


async def test_a_service_that_is_suspended_lets_nobody_wait_any_more() -> None:
    async with run_gateway(at_zero(), writer=Writer()) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        suspend(gateway)
        assert (await asking)[0] == 503


async def test_whom_every_replica_has_refused_waits_for_no_other_of_a_suspended_service() -> None:
    async def draining(request: web.Request) -> web.Response:
        return web.json_response({}, status=503, headers={"x-tidemill-draining": "true"})

    async with run_upstream(draining) as leaving:
        world = make_world([make_service(scaling=ZERO)], [make_pod("old", port=leaving)])
        async with run_gateway(world, ServerConfig()) as gateway:
            asking = asyncio.ensure_future(status_of(gateway))
            await until(lambda: held(gateway) == 1)
            suspend(gateway)
            assert (await asking)[0] == 503


async def test_a_service_whose_only_replica_is_starting_is_waited_for_without_a_wake() -> None:
    writer = Writer()
    world = make_world([make_service()], [make_pod(ready=False)])
    async with run_upstream(answer) as port, run_gateway(world, ServerConfig(), writer=writer) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        wake(gateway, port)
        assert await asking == (200, None)
    assert not writer.applied


async def test_a_request_whose_only_replica_drains_is_replayed_on_the_next_one() -> None:
    async def draining(request: web.Request) -> web.Response:
        return web.json_response({}, status=503, headers={"x-tidemill-draining": "true"})

    async with run_upstream(draining) as leaving, run_upstream(answer) as port:
        world = make_world([make_service()], [make_pod("old", port=leaving)])
        async with run_gateway(world, ServerConfig()) as gateway:
            asking = asyncio.ensure_future(status_of(gateway))
            await until(lambda: held(gateway) == 1)
            wake(gateway, port, "new")
            assert await asking == (200, None)


async def test_a_service_that_is_deleted_lets_nobody_wait() -> None:
    async with run_gateway(at_zero(), writer=Writer()) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        gateway.state.update(remove(gateway.state.world, Kind.SERVICES, "service-default-chat"))
        assert (await asking)[0] == 404


async def test_the_models_of_a_service_at_zero_are_listed_without_waking_it() -> None:
    writer = Writer()
    async with (
        run_gateway(at_zero(), writer=writer) as gateway,
        gateway.get("/default/chat/v1/models") as response,
    ):
        assert [model["id"] for model in (await response.json())["data"]] == ["chat"]
    assert not writer.applied


async def test_a_busy_service_lets_in_as_many_as_it_may_and_the_rest_take_turns() -> None:
    release, num_seen, most = asyncio.Event(), 0, 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal num_seen, most
        num_seen += 1
        most = max(most, num_seen)
        await release.wait()
        num_seen -= 1
        return web.Response()

    service = make_service(routing={"maxInFlightPerReplica": 2})
    async with run_upstream(slow) as port:
        pods = [make_pod("a", port=port), make_pod("b", port=port)]
        async with run_gateway(make_world([service], pods)) as gateway:
            asking = [asyncio.ensure_future(status_of(gateway)) for _ in range(10)]
            await until(lambda: held(gateway) == 6 and num_seen == 4)
            release.set()
            assert {status for status, _ in await asyncio.gather(*asking)} == {200}
    assert most == 4


@pytest.mark.parametrize("last", ["2999-01-01T00:00:00Z"])
async def test_a_gateway_does_not_ask_again_what_another_has_just_asked(last: str) -> None:
    writer = Writer()
    world = make_world([make_service(scaling=ZERO, status={"activation": {"requestTime": last}})])
    async with run_upstream(answer) as port, run_gateway(world, writer=writer) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        await asyncio.sleep(0)
        wake(gateway, port)
        assert await asking == (200, None)
    assert not writer.applied


async def test_a_forged_pod_gets_nothing_while_the_service_is_at_zero() -> None:
    forged = make_pod("forged", owners=make_link("x")["metadata"]["ownerReferences"])
    async with run_upstream(answer) as port, run_gateway(at_zero(), writer=Writer()) as gateway:
        asking = asyncio.ensure_future(status_of(gateway))
        await until(lambda: held(gateway) == 1)
        forged["status"]["podIP"] = "127.0.0.1"
        gateway.state.update(put(gateway.state.world, Kind.PODS, parse(Kind.PODS, forged)))
        assert held(gateway) == 1
        wake(gateway, port)
        assert await asking == (200, None)


def test_durations_and_bounds_come_from_the_spec() -> None:
    service = parsed_service(
        scaling={"scaleToZero": {"activationTimeout": "1m30s", "maxBufferedRequests": 7}}
    )
    assert service.waking is not None
    assert (service.waking.timeout_seconds, service.waking.max_buffered_requests) == (90.0, 7)
