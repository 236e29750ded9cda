"""Engines and gateways on real sockets, well and unwell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from scaling_builders import DEMAND, LOAD, METRICS
from tidemill_operator.fleet.scraper import (
    MAX_ANSWER_BYTES,
    METRICS_SECONDS,
    EngineTarget,
    GatewayTarget,
    Scraper,
)

TARGET = EngineTarget(uid="uid-1", name="chat-0", ip="127.0.0.1", tokens=("secret",))


@dataclass(kw_only=True)
class FakeHost:
    """One address with both of an engine's ports, and a gateway's."""

    load: web.StreamResponse | str = ""
    load_status: int = 200
    token: str = "secret"
    metrics: str = METRICS
    demand: str = ""
    hangs: asyncio.Event | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, request.headers.get("Authorization", "")))
        if self.hangs is not None and request.path != "/metrics":
            await self.hangs.wait()
        if request.path == "/load":
            if self.load_status == 302:
                raise web.HTTPFound("/metrics")
            is_known = request.headers.get("Authorization") == f"Bearer {self.token}"
            return web.Response(text=str(self.load), status=self.load_status if is_known else 401)
        return web.Response(text=self.metrics if request.path == "/metrics" else self.demand)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


@asynccontextmanager
async def scraping(
    host: FakeHost, *, has_admin_port: bool = True, now: Callable[[], float] = lambda: 50.0
) -> AsyncIterator[Scraper]:
    app = web.Application()
    app.router.add_get("/{path:.*}", host.answer)
    server = TestServer(app)
    await server.start_server()
    closed = TestServer(web.Application())
    await closed.start_server()
    assert server.port is not None
    assert closed.port is not None
    closed_port = closed.port
    await closed.close()
    ports = (server.port if has_admin_port else closed_port, server.port, server.port)
    scraper = Scraper(now=now, ports=ports, timeout_seconds=0.3)
    try:
        yield scraper
    finally:
        if host.hangs is not None:
            host.hangs.set()
        await scraper.close()
        await server.close()


async def test_asks_our_engine_with_its_token() -> None:
    host = FakeHost(load=json.dumps(LOAD))
    async with scraping(host) as scraper:
        answer = await scraper.engine(TARGET)
    assert answer.figures is not None
    assert (answer.figures.num_running, answer.figures.sampled_at) == (3, 50.0)
    assert host.asked == [("/load", "Bearer secret")]


async def test_an_engine_that_does_not_know_the_new_token_yet_is_offered_the_one_before() -> None:
    host = FakeHost(load=json.dumps(LOAD))
    async with scraping(host) as scraper:
        answer = await scraper.engine(replace(TARGET, tokens=("new", "secret")))
        host.token = "of another service"
        refused = await scraper.engine(replace(TARGET, tokens=("new", "secret")))
    assert answer.figures is not None
    assert "401" in refused.missing_reason
    assert host.asked == [("/load", "Bearer new"), ("/load", "Bearer secret")] * 2


@pytest.mark.parametrize("has_admin_port", [True, False])
async def test_an_engine_without_load_is_read_by_its_metrics_and_remembered_for_a_minute(
    has_admin_port: bool,
) -> None:
    host, clock = FakeHost(load_status=404), [50.0]
    async with scraping(host, has_admin_port=has_admin_port, now=lambda: clock[0]) as scraper:
        answers = [await scraper.engine(TARGET) for _ in range(3)]
        assert [answer.figures is not None for answer in answers] == [True, True, True]
        assert host.paths.count("/metrics") == 3
        assert host.paths.count("/load") == (1 if has_admin_port else 0)
        assert ("/metrics", "Bearer secret") not in host.asked
        clock[0] += METRICS_SECONDS
        await scraper.engine(TARGET)
    assert host.paths.count("/load") == (2 if has_admin_port else 0)


async def test_our_engine_that_had_no_load_while_it_started_is_read_by_it_later() -> None:
    host, clock = FakeHost(load=json.dumps(LOAD), load_status=404), [50.0]
    async with scraping(host, now=lambda: clock[0]) as scraper:
        await scraper.engine(TARGET)
        host.load_status = 200
        clock[0] += METRICS_SECONDS
        host.asked.clear()
        for _ in range(3):
            assert (await scraper.engine(TARGET)).figures is not None
    assert host.paths == ["/load"] * 3


async def test_an_engine_that_was_read_by_its_metrics_still_is_where_its_other_port_turns_silent() -> None:
    host, clock = FakeHost(load_status=404), [50.0]
    async with scraping(host, now=lambda: clock[0]) as scraper:
        await scraper.engine(TARGET)
        clock[0] += METRICS_SECONDS
        host.hangs = asyncio.Event()
        answers = [await scraper.engine(TARGET) for _ in range(3)]
        host.hangs.set()
    assert all(answer.figures is not None for answer in answers)
    assert host.paths.count("/load") == 2, "it is asked once a minute"


async def test_engines_that_are_gone_are_forgotten() -> None:
    host, clock = FakeHost(load_status=404), [50.0]
    async with scraping(host, now=lambda: clock[0]) as scraper:
        for number in range(50):
            await scraper.engine(replace(TARGET, uid=f"uid-{number}"))
            clock[0] += METRICS_SECONDS
        assert len(scraper._speaks_metrics) <= 3


@pytest.mark.parametrize("status", [401, 500, 302])
async def test_an_engine_that_refuses_is_missing_and_its_metrics_are_not_asked_instead(status: int) -> None:
    host = FakeHost(load_status=status)
    async with scraping(host) as scraper:
        answer = await scraper.engine(TARGET)
    assert answer.figures is None
    assert str(status) in answer.missing_reason
    assert host.paths == ["/load"]


async def test_an_engine_that_never_answers_costs_no_more_than_the_limit() -> None:
    async with scraping(FakeHost(hangs=asyncio.Event())) as scraper:
        answer = await asyncio.wait_for(scraper.engine(TARGET), timeout=10)
    assert answer.figures is None
    assert "no answer" in answer.missing_reason


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    async with scraping(FakeHost(load="x" * (MAX_ANSWER_BYTES + 1))) as scraper:
        answer = await scraper.engine(TARGET)
    assert "more than" in answer.missing_reason


async def test_nobody_at_the_address_is_missing_with_both_reasons() -> None:
    async with scraping(FakeHost(metrics="other 1"), has_admin_port=False) as scraper:
        answer = await scraper.engine(TARGET)
    assert answer.figures is None
    assert "no connection" in answer.missing_reason
    assert "vllm:num_requests_running" in answer.missing_reason


async def test_reads_a_gateways_demand_and_says_what_is_wrong_with_it() -> None:
    host = FakeHost(demand=json.dumps({"started": 3.0, "services": {"prod/chat": DEMAND}}))
    async with scraping(host) as scraper:
        good = await scraper.gateway(GatewayTarget(name="g", ip="127.0.0.1"))
        host.demand = "{}"
        bad = await scraper.gateway(GatewayTarget(name="g", ip="127.0.0.1"))
    assert good.services is not None
    assert (good.started, good.services["prod/chat"].held_requests) == (3.0, 4)
    assert bad.services is None
    assert "no services" in bad.missing_reason


def test_a_token_is_never_shown() -> None:
    assert "secret" not in repr(TARGET)
