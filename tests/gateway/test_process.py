"""The whole process on loopback: from the API server's lists to a streamed answer, and a graceful end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from gateway.builders import chain_of, make_pod, make_service, run_upstream
from gateway.fake_api_server import FakeApiServer, run_fake_api_server
from tidemill_gateway.__main__ import config_from, parse_arguments
from tidemill_gateway.objects import Kind
from tidemill_gateway.process import ProcessConfig, serve

CHAT = {"model": "chat"}


@dataclass
class Process:
    server: FakeApiServer
    client: aiohttp.ClientSession
    url: str
    admin_url: str
    stopping: asyncio.Event
    grace_begun: asyncio.Event
    grace_over: asyncio.Event
    graces: list[float]
    task: asyncio.Future[None]
    during_graces: list[Callable[[], Awaitable[object]]]
    """What happens in every grace."""

    async def status(self, url: str) -> int:
        async with self.client.get(url) as response:
            return response.status


def config(shutdown_timeout_seconds: float = 60.0, shutdown_grace_seconds: float = 5.0) -> ProcessConfig:
    return ProcessConfig(
        host="127.0.0.1",
        port=0,
        admin_host="127.0.0.1",
        admin_port=0,
        shutdown_grace_seconds=shutdown_grace_seconds,
        shutdown_timeout_seconds=shutdown_timeout_seconds,
    )


@asynccontextmanager
async def process(upstream_port: int, settings: ProcessConfig) -> AsyncIterator[Process]:
    ports: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    stopping, grace_begun, grace_over = asyncio.Event(), asyncio.Event(), asyncio.Event()
    graces: list[float] = []
    during_graces: list[Callable[[], Awaitable[object]]] = []

    async def sleep(seconds: float) -> None:
        grace_begun.set()
        graces.append(seconds)
        assert len(graces) < 20, "a leaving gateway accepts for ever"
        await grace_over.wait()
        for happens in during_graces:
            await happens()

    async with run_fake_api_server() as (server, api), aiohttp.ClientSession() as client:
        for kind, raw in zip(
            (Kind.SERVICES, Kind.DEPLOYMENTS, Kind.REPLICA_SETS, Kind.PODS),
            (make_service(), *chain_of(), make_pod(port=upstream_port)),
            strict=True,
        ):
            server.objects[kind.value][raw["metadata"]["uid"]] = raw
        task = asyncio.ensure_future(
            serve(
                settings,
                api,
                stopping,
                on_started=lambda port, admin_port: ports.set_result((port, admin_port)),
                sleep=sleep,
            )
        )
        port, admin_port = await ports
        running = Process(
            server=server,
            client=client,
            url=f"http://127.0.0.1:{port}",
            admin_url=f"http://127.0.0.1:{admin_port}",
            stopping=stopping,
            grace_begun=grace_begun,
            grace_over=grace_over,
            graces=graces,
            task=task,
            during_graces=during_graces,
        )
        while await running.status(f"{running.admin_url}/health/ready") != 200:
            pass
        yield running
        stopping.set()
        grace_over.set()
        await task


async def answer(request: web.Request) -> web.Response:
    return web.json_response({"answered": request.path})


async def test_what_the_api_server_lists_is_served_and_measured() -> None:
    async with run_upstream(answer) as port, process(port, config()) as running:
        async with running.client.post(f"{running.url}/v1/completions", json=CHAT) as response:
            assert await response.json() == {"answered": "/v1/completions"}
        assert await running.status(f"{running.admin_url}/health/live") == 200
        async with running.client.get(f"{running.admin_url}/metrics") as response:
            text = await response.text()
        assert 'tidemill_gateway_ready_replicas{namespace="default",service="chat"} 1.0' in text
        assert "tidemill_gateway_known_services 1.0" in text
        assert "tidemill_gateway_time_to_first_byte_seconds_bucket" in text


async def test_the_operator_reads_what_clients_ask_for_on_the_admin_port_alone() -> None:
    async def answer_with_usage(request: web.Request) -> web.Response:
        return web.json_response({"usage": {"completion_tokens": 7}})

    async with run_upstream(answer_with_usage) as port, process(port, config()) as running:
        body = {**CHAT, "prompt": "x" * 40}
        async with running.client.post(f"{running.url}/v1/completions", json=body) as response:
            await response.read()
        async with running.client.get(f"{running.admin_url}/demand") as response:
            demand = (await response.json())["services"]["default/chat"]
        assert demand["requests_total"] == 1
        assert (demand["prompt_tokens_total"], demand["output_tokens_total"]) == (10, 7)
        assert demand["last_request_time"] > 1_700_000_000
        assert await running.status(f"{running.url}/demand") == 404


async def test_at_the_end_readiness_fails_first_and_streams_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tidemill_gateway.process.FINAL_SECONDS", 0.01
    )  # only the long timeout may save streams
    finish = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        await finish.wait()
        await response.write(b"data: two\n\n")
        return response

    async with run_upstream(stream) as port, process(port, config()) as running:
        async with running.client.post(f"{running.url}/v1/completions", json=CHAT) as response:
            await response.content.readany()
            running.stopping.set()
            await running.grace_begun.wait()
            assert await running.status(f"{running.admin_url}/health/ready") == 503
            assert await running.status(f"{running.url}/v1/models") == 200  # still accepting
            running.grace_over.set()
            while True:
                try:
                    await running.status(f"{running.url}/v1/models")
                except aiohttp.ClientError:
                    break  # the port is closed
            await asyncio.wait({running.task}, timeout=0.2)
            assert not running.task.done()
            finish.set()
            assert await response.read() == b"data: two\n\n"
        await running.task


@pytest.mark.parametrize(("num_late", "num_graces"), [(0, 1), (1, 2), (3, 2)])
async def test_a_grace_in_which_a_request_came_is_followed_by_another(num_late: int, num_graces: int) -> None:
    async with run_upstream(answer) as port, process(port, config()) as running:
        running.stopping.set()
        await running.grace_begun.wait()
        for _ in range(num_late):
            async with running.client.post(f"{running.url}/v1/completions", json=CHAT) as response:
                assert response.status == 200
                assert response.headers["Connection"] == "close"
        running.grace_over.set()
        await running.task
        assert running.graces == [5.0] * num_graces


@pytest.mark.parametrize(
    ("limit", "grace", "num_graces"), [(20.0, 5.0, 3), (22.0, 5.0, 3), (8.0, 5.0, 1), (20.0, 0.0, 1)]
)
async def test_requests_without_end_keep_a_leaving_gateway_for_half_of_its_timeout(
    limit: float, grace: float, num_graces: int
) -> None:
    async with run_upstream(answer) as port, process(port, config(limit, grace)) as running:
        running.during_graces.append(lambda: running.status(f"{running.url}/v1/models"))
        running.stopping.set()
        running.grace_over.set()
        await running.task
        assert running.graces == [grace] * num_graces


async def test_streams_that_do_not_finish_in_time_are_cut() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        await asyncio.Event().wait()
        return response

    async with (
        run_upstream(stream) as port,
        process(port, config(0.05)) as running,
        running.client.post(f"{running.url}/v1/completions", json=CHAT) as response,
    ):
        await response.content.readany()
        running.stopping.set()
        running.grace_over.set()
        await running.task
        with pytest.raises(aiohttp.ClientError):
            await response.read()


def test_flags_become_the_configuration() -> None:
    arguments = [
        "run",
        "--port",
        "9",
        "--watch-namespace",
        "a",
        "--watch-namespace",
        "b",
        "--max-body-bytes",
        "5",
    ]
    parsed = config_from(parse_arguments(arguments))
    assert (parsed.port, parsed.namespaces, parsed.server.max_body_bytes) == (9, ("a", "b"), 5)
    assert config_from(parse_arguments(["run"])).admin_port == 8081


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run", "--port", "70000"],
        ["run", "--max-body-bytes", "0"],
        ["run", "--shutdown-grace", "-1"],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_arguments(arguments)
    assert exit_.value.code == 2
    assert "usage:" in capsys.readouterr().err
