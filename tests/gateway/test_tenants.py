"""Keys, tenants and what engines learn of them, through a running gateway."""

import asyncio
import hmac
import json
from base64 import b64encode
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from gateway.builders import (
    RunningGateway,
    make_pod,
    make_service,
    make_world,
    run_gateway,
    run_upstream,
    until,
)
from tidemill_gateway.objects import Kind, parse
from tidemill_gateway.world import World, put

PATH = "/v1/chat/completions"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
AUTH: dict[str, Any] = {"auth": {"secretRef": {"name": "chat-keys"}}}
SALT = b"\x01" * 16


def projection(**keys: str) -> dict[str, Any]:
    hashes = {tenant: [hmac.digest(SALT, key.encode(), "sha256").hex()] for tenant, key in keys.items()}
    document = {"salt": SALT.hex(), "keys": hashes, "engineToken": "engine-token"}
    return {
        "metadata": {"name": "tidemill-gateway-keys", "namespace": "home", "uid": "keys"},
        "data": {"default.chat": b64encode(json.dumps(document).encode()).decode()},
    }


def locked(*ports: int, keys: dict[str, Any] | None = None, **routing: Any) -> World:
    pods = [make_pod(f"chat-{number}", port=port) for number, port in enumerate(ports)]
    world = make_world([make_service(routing={**AUTH, **routing})], pods)
    return world if keys is None else put(world, Kind.KEYS, parse(Kind.KEYS, keys))


def bearer(key: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **headers}


async def echo_headers(request: web.Request) -> web.Response:
    return web.json_response({name.lower(): value for name, value in request.headers.items()})


async def ask(gateway: RunningGateway, key: str, **headers: str) -> tuple[int, Any]:
    async with gateway.post(PATH, json=CHAT, headers=bearer(key, **headers)) as response:
        return response.status, await response.json()


async def test_a_right_key_lets_in_and_the_engine_learns_the_tenant_and_never_the_key() -> None:
    world_keys = projection(red="k-red")
    async with run_upstream(echo_headers) as port, run_gateway(locked(port, keys=world_keys)) as gateway:
        status, headers = await ask(gateway, "k-red", **{"x-tidemill-tenant": "forged"})
    assert status == 200
    assert headers["x-tidemill-tenant"] == "red"
    assert headers["authorization"] == "Bearer engine-token"
    assert "k-red" not in json.dumps(headers)


@pytest.mark.parametrize("key", ["", "wrong", "engine-token"])
async def test_a_wrong_key_gets_openais_401(key: str) -> None:
    async with (
        run_upstream(echo_headers) as port,
        run_gateway(locked(port, keys=projection(red="k-red"))) as gateway,
        gateway.post(PATH, json=CHAT, headers=bearer(key)) as response,
    ):
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        error = (await response.json())["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")


@pytest.mark.parametrize("path", ["/default/chat/v1/models", "/default/chat/"])
async def test_pages_want_the_key_too(path: str) -> None:
    async with (
        run_upstream(echo_headers) as port,
        run_gateway(locked(port, keys=projection(red="k-red"))) as gateway,
    ):
        async with gateway.get(path) as response:
            assert response.status == 401
        async with gateway.get(path, headers=bearer("k-red")) as response:
            assert response.status == 200


async def test_before_the_keys_are_known_nobody_is_let_in() -> None:
    async with run_upstream(echo_headers) as port, run_gateway(locked(port)) as gateway:
        status, document = await ask(gateway, "k-red")
    assert (status, document["error"]["code"]) == (503, "keys_unavailable")


async def test_a_key_is_replaced_without_a_restart() -> None:
    async with (
        run_upstream(echo_headers) as port,
        run_gateway(locked(port, keys=projection(red="old"))) as gateway,
    ):
        assert (await ask(gateway, "old"))[0] == 200
        newer = parse(Kind.KEYS, projection(red="new"))
        gateway.state.update(put(gateway.state.world, Kind.KEYS, newer))
        assert [(await ask(gateway, key))[0] for key in ("old", "new")] == [401, 200]


async def test_a_tenant_over_its_rate_gets_429_and_another_one_is_not_touched() -> None:
    tenants = [{"name": "red", "limits": {"requestsPerMinute": 2}}]
    keys = projection(red="k-red", blue="k-blue")
    async with (
        run_upstream(echo_headers) as port,
        run_gateway(locked(port, keys=keys, tenants=tenants)) as gateway,
    ):
        assert [(await ask(gateway, "k-red"))[0] for _ in range(3)] == [200, 200, 429]
        assert [(await ask(gateway, "k-blue"))[0] for _ in range(3)] == [200, 200, 200]
        async with gateway.post(PATH, json=CHAT, headers=bearer("k-red")) as response:
            assert int(response.headers["Retry-After"]) > 1
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"


async def test_what_a_tenant_asks_for_beyond_its_limits_is_no_demand_that_a_service_would_grow_for() -> None:
    tenants = [{"name": "red", "limits": {"requestsPerMinute": 2}}]
    async with (
        run_upstream(echo_headers) as port,
        run_gateway(locked(port, keys=projection(red="k-red"), tenants=tenants)) as gateway,
    ):
        answers = [(await ask(gateway, "k-red"))[0] for _ in range(9)]
        assert answers.count(200) == gateway.demand.of(("default", "chat")).requests_total == 2


async def test_without_keys_the_limits_bound_everybody_together_and_no_tenant_is_named() -> None:
    async with run_upstream(echo_headers) as port:
        pods = [make_pod(port=port)]
        service = make_service(routing={"limits": {"requestsPerMinute": 1}})
        async with run_gateway(make_world([service], pods)) as gateway:
            status, headers = await ask(
                gateway, "own", **{"x-tidemill-tenant": "x", "x-tidemill-priority": "1"}
            )
            assert status == 200
            assert headers["authorization"] == "Bearer own"
            assert not {"x-tidemill-tenant", "x-tidemill-priority"} & headers.keys()
            assert (await ask(gateway, "own"))[0] == 429


async def test_a_busy_service_serves_tenants_by_weight_and_not_by_how_loudly_they_ask() -> None:
    release = asyncio.Event()
    order: list[str] = []

    async def slow(request: web.Request) -> web.Response:
        if not order:
            order.append("first")
            await release.wait()
        else:
            order.append(request.headers["x-tidemill-tenant"])
        return web.json_response({})

    keys = projection(loud="k-loud", quiet="k-quiet")
    tenants = [{"name": "quiet", "weight": 3}]
    async with run_upstream(slow) as port:
        world = locked(port, keys=keys, tenants=tenants, maxInFlightPerReplica=1)
        async with run_gateway(world) as gateway:
            demand = gateway.demand.of(("default", "chat"))
            tasks = [asyncio.ensure_future(ask(gateway, "k-loud"))]
            await until(lambda: bool(order))
            tasks += [asyncio.ensure_future(ask(gateway, "k-loud")) for _ in range(40)]
            await until(lambda: demand.held_requests == 40)
            tasks += [asyncio.ensure_future(ask(gateway, "k-quiet")) for _ in range(9)]
            await until(lambda: demand.held_requests == 49)
            release.set()
            assert {status for status, _ in await asyncio.gather(*tasks)} == {200}
    assert Counter(order[1:13])["quiet"] >= 8


async def test_one_session_stays_on_one_replica_and_sessions_spread() -> None:
    seen: dict[str, set[int]] = {}

    def engine(number: int) -> Any:
        async def handler(request: web.Request) -> web.Response:
            seen.setdefault(request.headers["X-Session-Id"], set()).add(number)
            return web.json_response({})

        return handler

    async with run_upstream(engine(0)) as first, run_upstream(engine(1)) as second:
        pods = [make_pod("a", port=first), make_pod("b", port=second)]
        async with run_gateway(make_world([make_service()], pods)) as gateway:
            for _ in range(3):
                for number in range(16):
                    await ask(gateway, "x", **{"X-Session-Id": f"s{number}"})
    assert all(len(replicas) == 1 for replicas in seen.values())
    assert set().union(*seen.values()) == {0, 1}


async def test_a_canary_gets_its_share_of_sessions_and_a_failed_one_nothing() -> None:
    counts: Counter[str] = Counter()

    def engine(name: str) -> Any:
        async def handler(request: web.Request) -> web.Response:
            counts[name] += 1
            return web.json_response({})

        return handler

    def service(**revision: str) -> dict[str, Any]:
        status = {"revision": {"current": "old", "update": "new", **revision}}
        return make_service(rollout={"canary": {"trafficPercent": 30}}, status=status)

    async with run_upstream(engine("old")) as first, run_upstream(engine("new")) as second:
        pods = [make_pod("a", port=first, revision="old"), make_pod("b", port=second, revision="new")]
        async with run_gateway(make_world([service()], pods)) as gateway:
            for number in range(100):
                await ask(gateway, "x", **{"X-Session-Id": f"s{number}"})
            assert 15 <= counts["new"] <= 45
            before = counts["new"]
            failed = parse(Kind.SERVICES, service(failed="new"))
            gateway.state.update(put(gateway.state.world, Kind.SERVICES, failed))
            for number in range(30):
                await ask(gateway, "x", **{"X-Session-Id": f"s{number}"})
            assert counts["new"] == before
