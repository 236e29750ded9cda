"""The proxy that spoils days: what passes through it, and each thing that it does to a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from api_proxy import ApiProxy, Faults

LINES = [b'{"n": 1}\n', b'{"n": 2}\n', b'{"n": 3}\n']


class Upstream:
    """An API server that notes what reaches it and streams three lines to whoever watches."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str | None, bytes]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append((request.method, request.raw_path, request.headers.get("Content-Type"), body))
        if request.query.get("watch") != "true":
            return web.json_response({"token": request.headers.get("Authorization")})
        answer = web.StreamResponse()
        await answer.prepare(request)
        for line in LINES:
            await answer.write(line)
        if request.query.get("endless") == "true":
            await asyncio.Event().wait()
        return answer


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def server(upstream: Upstream) -> AsyncIterator[TestServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", upstream.handle)
    started = TestServer(app)
    await started.start_server()
    yield started
    await started.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
def proxy(server: TestServer) -> Iterator[ApiProxy]:
    made = ApiProxy(str(server.make_url("")).rstrip("/"), None)
    made.start()
    yield made
    made.stop()


async def status_of(session: aiohttp.ClientSession, method: str, url: str) -> int:
    """Give the status of one request; 0 when the connection broke."""
    try:
        async with session.request(method, url) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


async def test_a_request_passes_as_it_is_with_its_credentials(
    proxy: ApiProxy, upstream: Upstream, session: aiohttp.ClientSession
) -> None:
    headers = {"Authorization": "Bearer mine", "Content-Type": "application/apply-patch+yaml"}
    async with session.patch(
        URL(f"{proxy.url}/apis/x?a=b%2Fc", encoded=True), data=b"{}", headers=headers
    ) as answer:
        assert await answer.json() == {"token": "Bearer mine"}
    assert upstream.seen == [("PATCH", "/apis/x?a=b%2Fc", "application/apply-patch+yaml", b"{}")]


async def test_a_request_without_a_body_gets_no_content_type(
    proxy: ApiProxy, upstream: Upstream, session: aiohttp.ClientSession
) -> None:
    assert await status_of(session, "GET", f"{proxy.url}/apis") == 200
    assert upstream.seen == [("GET", "/apis", None, b"")]


async def test_a_watch_is_streamed_and_cut_after_so_many_events(
    proxy: ApiProxy, session: aiohttp.ClientSession
) -> None:
    url = f"{proxy.url}/pods?watch=true"
    async with session.get(url) as whole:
        assert await whole.read() == b"".join(LINES)
    proxy.misbehave(Faults(watch_cut_after=2))
    async with session.get(url) as cut:
        assert [await cut.content.readline() for _ in range(2)] == LINES[:2]
        with pytest.raises(aiohttp.ClientError):
            await cut.content.readline()
    assert proxy.counts["WATCH"] == 2


async def test_a_watch_under_way_is_cut_when_the_weather_changes(
    proxy: ApiProxy, session: aiohttp.ClientSession
) -> None:
    async with session.get(f"{proxy.url}/pods?watch=true&endless=true") as watch:
        assert [await watch.content.readline() for _ in LINES] == LINES
        proxy.misbehave(Faults(watch_expired=1.0))
        with pytest.raises(aiohttp.ClientError):
            await watch.content.readline()
    assert await status_of(session, "GET", f"{proxy.url}/pods?watch=true") == 410


@pytest.mark.parametrize(
    ("faults", "statuses", "num_passed"),
    [
        (Faults(refused=1.0, refusals=(429,)), {429}, 0),
        (Faults(dropped=1.0), {0}, 0),
        (Faults(answer_lost=1.0), {0}, 5),
        (Faults(refused=1.0, spared=("/pods",)), {200}, 5),
    ],
    ids=["refused", "dropped before it arrives", "dropped after it arrived", "spared"],
)
async def test_each_fault_does_what_it_says(
    faults: Faults, statuses: set[int], num_passed: int, proxy: ApiProxy, upstream: Upstream,
    session: aiohttp.ClientSession,
) -> None:  # fmt: skip
    proxy.misbehave(faults)
    found = {await status_of(session, "POST", f"{proxy.url}/pods") for _ in range(5)}
    assert found == statuses
    assert len(upstream.seen) == num_passed


async def test_the_same_seed_harms_the_same_requests(
    server: TestServer, session: aiohttp.ClientSession
) -> None:
    histories = []
    for _ in range(2):
        proxy = ApiProxy(str(server.make_url("")).rstrip("/"), None, seed=3)
        proxy.start()
        proxy.misbehave(Faults(refused=0.5))
        histories.append([await status_of(session, "POST", f"{proxy.url}/pods") for _ in range(20)])
        await asyncio.to_thread(proxy.stop)
    assert histories[0] == histories[1]
    assert len(set(histories[0])) > 2


@pytest.mark.parametrize("is_before", [True, False])
async def test_an_action_comes_once_right_before_or_after_the_write_that_it_waits_for(
    is_before: bool, proxy: ApiProxy, upstream: Upstream, session: aiohttp.ClientSession
) -> None:
    seen_then: list[int] = []
    proxy.at_write(2, lambda: seen_then.append(len(upstream.seen)), is_before=is_before)
    for method in ("POST", "GET", "PATCH", "DELETE"):
        assert await status_of(session, method, f"{proxy.url}/pods") == 200
    assert seen_then == [2 if is_before else 3]
