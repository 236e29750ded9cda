"""The public side: bodies, models and errors as a client meets them."""

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.builders import make_pod, make_service, make_world, run_gateway, run_upstream
from tidemill_gateway.body import ReadBody
from tidemill_gateway.parts import ServerConfig
from tidemill_gateway.state import ClusterState
from tidemill_gateway.world import World

CHAT_PATH = "/v1/chat/completions"


async def echo(request: web.Request) -> web.Response:
    return web.json_response({"path": request.path, "size": len(await request.read())})


def world_with(*services: dict[str, Any]) -> World:
    return make_world(services)


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    document = await response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = document["error"]
    return error


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"chat"', "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b"[" * 200_000, "invalid_json"),
        (b'{"model": 5}', "invalid_type"),
        (b"{}", "model_required"),
        (b'{"model": null}', "model_required"),
    ],
)
async def test_a_body_that_is_no_request_gets_400(body: bytes, code: str) -> None:
    async with (
        run_gateway(world_with(make_service())) as gateway,
        gateway.post(CHAT_PATH, data=body) as response,
    ):
        assert response.status == 400
        assert (await error_of(response))["code"] == code


async def test_a_body_on_the_bound_passes_and_one_byte_more_gets_413() -> None:
    empty = json.dumps({"model": "chat", "pad": ""}).encode()
    config = ServerConfig(max_body_bytes=2000)

    def body_of(size: int) -> bytes:
        return empty[:-2] + b"x" * (size - len(empty)) + empty[-2:]

    async with run_upstream(echo) as port:
        world = make_world([make_service()], [make_pod(port=port)])
        async with run_gateway(world, config) as gateway:
            async with gateway.post(CHAT_PATH, data=body_of(2000)) as response:
                assert (await response.json())["size"] == 2000
            async with gateway.post(CHAT_PATH, data=body_of(2001)) as response:
                assert response.status == 413
                assert (await error_of(response))["code"] == "request_too_large"


async def test_a_body_of_unknown_length_is_bounded_too() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 1000

    config = ServerConfig(max_body_bytes=5000)
    async with (
        run_gateway(world_with(make_service()), config) as gateway,
        gateway.post(CHAT_PATH, data=endless()) as response,
    ):
        assert response.status == 413


async def test_a_compressed_body_is_bounded_by_its_real_size_and_passed_on_plain() -> None:
    async def look(request: web.Request) -> web.Response:
        return web.json_response([request.headers.get("Content-Encoding"), await request.json()])

    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    bomb = json.dumps({"model": "chat", "pad": "x" * 3_000_000}).encode()
    async with (
        run_upstream(look) as port,
        run_gateway(
            make_world([make_service()], [make_pod(port=port)]), ServerConfig(max_body_bytes=100_000)
        ) as gateway,
    ):
        async with gateway.post(
            CHAT_PATH, data=gzip.compress(b'{"model": "chat"}'), headers=headers
        ) as response:
            assert await response.json() == [None, {"model": "chat"}]
        assert len(gzip.compress(bomb)) < 100_000
        async with gateway.post(CHAT_PATH, data=gzip.compress(bomb), headers=headers) as response:
            assert response.status == 413


async def test_a_body_that_does_not_arrive_gets_408() -> None:
    async def stuck() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    config = ServerConfig(body_timeout_seconds=0.05)
    async with (
        run_gateway(world_with(make_service()), config) as gateway,
        gateway.post(CHAT_PATH, data=stuck()) as response,
    ):
        assert response.status == 408


async def test_an_unknown_model_gets_404_with_the_models_that_exist() -> None:
    services = [make_service(f"m{i:02}") for i in range(12)]
    async with (
        run_gateway(world_with(*services)) as gateway,
        gateway.post(CHAT_PATH, json={"model": "nope"}) as response,
    ):
        assert response.status == 404
        error = await error_of(response)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
        assert "`m00`" in error["message"]
        assert "2 more" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT_PATH, 405, "method_not_allowed"),
        ("PUT", f"/default/chat{CHAT_PATH}", 405, "method_not_allowed"),
        ("GET", "/", 404, "not_found"),
        ("GET", "/default/nope/v1/models", 404, "service_not_found"),
        ("GET", "/v1/models/nope", 404, "model_not_found"),
    ],
)
async def test_errors_have_their_status_and_code(method: str, path: str, status: int, code: str) -> None:
    async with (
        run_gateway(world_with(make_service())) as gateway,
        gateway.client.request(method, gateway.url(path)) as response,
    ):
        assert response.status == status
        assert (await error_of(response))["code"] == code
        assert ("Allow" in response.headers) == (status == 405)
        assert response.headers["X-Request-Id"]


async def test_models_lists_every_claim_and_gives_single_ones() -> None:
    services = [make_service("chat"), make_service("code", served=["org/coder"])]
    async with run_gateway(world_with(*services)) as gateway:
        async with gateway.get("/v1/models") as response:
            document = await response.json()
        assert [model["id"] for model in document["data"]] == ["chat", "org/coder"]
        assert document["data"][0] == {
            "id": "chat",
            "object": "model",
            "created": 1767323045,
            "owned_by": "tidemill",
        }
        async with gateway.get("/v1/models/org/coder") as response:
            assert (await response.json())["id"] == "org/coder"


async def test_a_path_a_host_and_the_page_reach_the_service() -> None:
    async with run_upstream(echo) as port:
        pods = [make_pod(port=port)]
        async with run_gateway(make_world([make_service(host="chat.example.com")], pods)) as gateway:
            for path, host, expected in [
                ("/default/chat/v1/models", "any", "/v1/models"),
                ("/default/chat/", "any", "/"),
                ("/default/chat", "any", "/"),
                ("/", "chat.example.com", "/"),
                ("/v1/models", "chat.default.svc", "/v1/models"),
            ]:
                async with gateway.get(path, headers={"Host": host}) as response:
                    assert (await response.json())["path"] == expected


async def test_multipart_bodies_pass_by_path_without_a_look_inside() -> None:
    async with (
        run_upstream(echo) as port,
        run_gateway(make_world([make_service()], [make_pod(port=port)])) as gateway,
    ):
        form = aiohttp.FormData()
        form.add_field("file", b"audio", filename="a.wav")
        async with gateway.post("/default/chat/v1/audio/transcriptions", data=form) as response:
            assert (await response.json())["path"] == "/v1/audio/transcriptions"


async def test_until_the_first_lists_are_here_an_unknown_model_is_not_called_unknown() -> None:
    async with run_gateway(World()) as gateway:
        gateway.state._missing.add("pods")
        async with gateway.post(CHAT_PATH, json={"model": "chat"}) as response:
            assert response.status == 503
            assert (await error_of(response))["code"] == "starting"
            assert response.headers["Retry-After"]


async def test_requests_beyond_the_bound_get_429_and_the_others_go_on() -> None:
    release, arrived = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        arrived.set()
        await release.wait()
        return web.Response(text="done")

    async with run_upstream(handler) as port:
        world = make_world([make_service()], [make_pod(port=port)])
        async with run_gateway(world, ServerConfig(max_in_flight=1)) as gateway:
            first = asyncio.ensure_future(gateway.client.post(gateway.url(CHAT_PATH), json={"model": "chat"}))
            await arrived.wait()
            async with gateway.post(CHAT_PATH, json={"model": "chat"}) as response:
                assert response.status == 429
                assert (await error_of(response))["code"] == "overloaded"
                assert response.headers["Retry-After"]
            release.set()
            async with await first as response:
                assert await response.text() == "done"


async def test_bodies_beyond_what_all_may_take_get_429_until_others_are_answered() -> None:
    release, arrived = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        arrived.set()
        await release.wait()
        return web.Response(text="done")

    large = {"model": "chat", "pad": "x" * 2000}
    async with run_upstream(handler) as port:
        world = make_world([make_service()], [make_pod(port=port)])
        async with run_gateway(world, ServerConfig(max_bodies_bytes=3000)) as gateway:
            first = asyncio.ensure_future(gateway.client.post(gateway.url(CHAT_PATH), json=large))
            await arrived.wait()
            async with gateway.post(CHAT_PATH, json=large) as response:
                assert response.status == 429
                assert (await error_of(response))["code"] == "overloaded"
            small = asyncio.ensure_future(gateway.client.post(gateway.url(CHAT_PATH), json={"model": "chat"}))
            release.set()
            for answered in (first, small):
                async with await answered as response:
                    assert await response.text() == "done"
            async with gateway.post(CHAT_PATH, json=large) as response:
                assert await response.text() == "done", "those that were answered or refused are gone"


def test_a_document_is_given_once_and_kept_no_longer() -> None:
    body = ReadBody(content=b"{}", model=None, document={"prompt": [1, 2]})
    assert body.take_document() == {"prompt": [1, 2]}
    assert body.document is None
    assert body.take_document() == {}


async def test_a_fault_inside_the_gateway_gets_500_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_state: ClusterState) -> None:
        raise RuntimeError("inner secret")

    async with run_gateway(world_with(make_service())) as gateway:
        monkeypatch.setattr(ClusterState, "claims", property(broken))
        async with gateway.get("/v1/models") as response:
            assert response.status == 500
            error = await error_of(response)
            assert "inner secret" not in error["message"]
            assert response.headers["X-Request-Id"] in error["message"]
