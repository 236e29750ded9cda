"""Requests to engines over real sockets: what is asked of whom, and what an engine that hangs costs."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from operator_builders import make_pod, settle
from tidemill_operator.engine_admin import EngineAdmin, make_session
from tidemill_operator.engine_load import EngineLoad

TOKEN = "a-very-secret-token"
BUSY = {"in_flight_requests": 2, "in_flight_tokens": 50, "draining": False}


class Engine:
    """An engine's admin port that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status = 200
        self.token = TOKEN

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path))
        if request.headers["Authorization"] != f"Bearer {self.token}":
            return web.json_response({}, status=401)
        phase = "refusing" if request.method == "PUT" else "no"
        return web.json_response({**BUSY, "phase": phase}, status=self.status)


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[EngineAdmin]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    async with TestServer(app) as server, make_session() as session:
        assert server.port is not None
        yield EngineAdmin(session, server.port)


async def test_serving_engines_are_asked_for_their_load_and_draining_ones_to_drain_again() -> None:
    engine = Engine()
    serving = make_pod("aaaa", 0, ip="127.0.0.1")
    draining = make_pod("aaaa", 1, ip="127.0.0.1", is_routable=False)
    async with running(engine) as admin:
        loads = await admin.read([serving, draining], [TOKEN])
    assert sorted(engine.asked) == [("GET", "/load"), ("PUT", "/drain")]
    assert loads == {
        serving.uid: EngineLoad(in_flight_requests=2, in_flight_tokens=50),
        draining.uid: EngineLoad(in_flight_requests=2, in_flight_tokens=50, is_refusing=True),
    }


async def test_an_answer_that_comes_in_several_packets_is_read_whole() -> None:
    async def in_two_parts(request: web.Request) -> web.StreamResponse:
        text = json.dumps({**BUSY, "phase": "no", "time_to_first_token": [[0.1, 7]] * 200})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(text[:1400].encode())
        await settle()
        await response.write(text[1400:].encode())
        return response

    engine, pod = Engine(), make_pod("aaaa", 0, ip="127.0.0.1")
    engine.handle = in_two_parts  # type: ignore[method-assign]
    async with running(engine) as admin:
        loads = await admin.read([pod], [TOKEN])
    assert loads == {pod.uid: EngineLoad(in_flight_requests=2, in_flight_tokens=50)}


async def test_an_answer_that_never_ends_is_none() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 10_000)

    engine, pod = Engine(), make_pod("aaaa", 0, ip="127.0.0.1")
    engine.handle = endless  # type: ignore[method-assign]
    async with running(engine) as admin:
        assert await admin.read([pod], [TOKEN]) == {pod.uid: None}


async def test_drains_and_takes_back() -> None:
    engine = Engine()
    async with running(engine) as admin:
        assert await admin.drain("127.0.0.1", [TOKEN])
        assert await admin.take_back("127.0.0.1", [TOKEN])
    assert engine.asked == [("PUT", "/drain"), ("DELETE", "/drain")]


async def test_an_engine_that_does_not_know_the_new_token_yet_is_offered_the_one_before() -> None:
    engine = Engine()
    async with running(engine) as admin:
        assert await admin.drain("127.0.0.1", ["new", TOKEN])
        engine.token = "new"
        assert await admin.drain("127.0.0.1", ["new", TOKEN])
        engine.token = "of another service"
        assert not await admin.drain("127.0.0.1", ["new", TOKEN])
        assert not await admin.drain("127.0.0.1", [])
    assert len(engine.asked) == 2 + 1 + 2


async def test_a_pod_without_an_address_has_no_engine_that_drains() -> None:
    engine = Engine()
    async with running(engine) as admin:
        assert await admin.take_back("", [TOKEN])
        assert not await admin.drain("", [TOKEN])
    assert engine.asked == []


@pytest.mark.parametrize("status", [401, 409, 500])
async def test_a_refusal_is_no_answer_and_never_shows_the_token(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    engine.status = status
    pod = make_pod("aaaa", ip="127.0.0.1")
    with caplog.at_level(logging.DEBUG):
        async with running(engine) as admin:
            assert await admin.read([pod], [TOKEN]) == {pod.uid: None}
            assert not await admin.take_back("127.0.0.1", [TOKEN])
    assert str(status) in caplog.text
    assert TOKEN not in caplog.text


async def test_an_engine_that_cannot_be_reached_or_has_no_address_has_no_load() -> None:
    gone, unborn = make_pod("aaaa", 0, ip="127.0.0.1"), make_pod("aaaa", 1, ip="")
    async with make_session() as session:
        assert await EngineAdmin(session, 1).read([gone, unborn], [TOKEN]) == {
            gone.uid: None,
            unborn.uid: None,
        }


async def test_an_answer_that_is_no_object_is_no_answer() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(["no", "object"])

    app = web.Application()
    app.router.add_route("*", "/load", handle)
    pod = make_pod("aaaa", ip="127.0.0.1")
    async with TestServer(app) as server, make_session() as session:
        assert server.port is not None
        assert await EngineAdmin(session, server.port).read([pod], [TOKEN]) == {pod.uid: None}
