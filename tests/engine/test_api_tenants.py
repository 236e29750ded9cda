"""Tenants, classes, SLOs and the queue's bounds, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from api_builders import make_serve_config, running_api
from fake_core import make_ready
from tidemill_engine.api.config import AdminConfig, HttpConfig
from tidemill_engine.api.keys import gateway_token

TERMS = {
    "x-tidemill-tenant": "alice",
    "x-tidemill-weight": "3",
    "x-tidemill-priority": "2",
    "x-tidemill-slo-ttft-ms": "250",
}


async def test_terms_reach_the_core_where_headers_are_trusted() -> None:
    config = make_serve_config(http=HttpConfig(is_trusting_tenant_headers=True))
    async with running_api(config=config) as api:
        body = {"model": "test", "prompt": "hi", "max_tokens": 2, "slo": {"itl_ms": 40}}
        task = asyncio.create_task(api.post("/v1/completions", body, headers=TERMS))
        await api.send_tokens(0, "ab", "length")
        assert (await task)[0] == 200
        request = api.core.requests[0]
        assert (request.tenant, request.tenant_weight, request.priority) == ("alice", 3.0, 2)
        assert (request.ttft_slo_seconds, request.itl_slo_seconds) == (0.25, 0.04)


async def test_a_stranger_s_headers_name_neither_tenant_nor_share_nor_class() -> None:
    async with running_api() as api:
        task = asyncio.create_task(api.post("/v1/completions", {"prompt": "hi"}, headers=TERMS))
        await api.send_tokens(0, "ab", "length")
        assert (await task)[0] == 200
        request = api.core.requests[0]
        assert (request.tenant, request.tenant_weight, request.priority) == ("", None, 0)


async def test_the_key_s_tenant_wins_and_a_wrong_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("bob=sk-bob\n*=sk-gateway\n")
    config = make_serve_config(http=HttpConfig(api_keys_file=path))
    async with running_api(config=config) as api:
        for index, (key, tenant, priority) in enumerate([("sk-bob", "bob", 0), ("sk-gateway", "alice", 2)]):
            headers = TERMS | {"Authorization": f"Bearer {key}"}
            task = asyncio.create_task(api.post("/v1/completions", {"prompt": "hi"}, headers=headers))
            await api.send_tokens(index, "ab", "length")
            assert (await task)[0] == 200
            assert (api.core.requests[index].tenant, api.core.requests[index].priority) == (tenant, priority)
        status, body = await api.post(
            "/v1/completions", {"prompt": "hi"}, headers={"Authorization": "Bearer x"}
        )
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_a_gateway_is_believed_by_its_former_token_while_this_engine_has_not_got_the_new_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("old")
    config = make_serve_config(admin=AdminConfig(token_file=tmp_path / "token"))
    new = {"Authorization": f"Bearer {gateway_token('new')}"}
    former = {"x-tidemill-former-token": gateway_token("old")}
    async with running_api(config=config) as api:
        for index, (headers, tenant) in enumerate([(new, ""), (new | former, "alice")]):
            task = asyncio.create_task(api.post("/v1/completions", {"prompt": "hi"}, headers=TERMS | headers))
            await api.send_tokens(index, "ab", "length")
            assert (await task)[0] == 200
            assert api.core.requests[index].tenant == tenant


async def test_a_bad_slo_is_refused_by_name() -> None:
    async with running_api() as api:
        status, body = await api.complete(prompt="hi", slo={"ttft_ms": -1})
        assert (status, body["error"]["param"]) == (400, "slo.ttft_ms")


async def test_each_tenant_s_tokens_are_counted(tmp_path: Path) -> None:
    config = make_serve_config(http=HttpConfig(is_trusting_tenant_headers=True))
    async with running_api(config=config) as api:
        body = {"model": "test", "prompt": [300, 301, 302], "n": 2}
        task = asyncio.create_task(api.post("/v1/completions", body, headers={"x-tidemill-tenant": 'al"ice'}))
        await api.send_tokens(0, "ab", "length")
        await api.send_tokens(1, "abc", "length")
        assert (await task)[0] == 200
        async with api.session.get(api.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        assert 'tidemill_tenant_requests_total{tenant="al\\"ice"} 2.0' in lines
        assert 'tidemill_tenant_prompt_tokens_total{tenant="al\\"ice"} 3.0' in lines
        assert 'tidemill_tenant_generation_tokens_total{tenant="al\\"ice"} 5.0' in lines


async def test_prompt_tokens_beyond_the_queue_s_bound_are_refused_until_those_before_have_begun() -> None:
    async with running_api(config=make_serve_config(max_num_queued_tokens=10)) as api:
        first = api.open_stream(prompt=[300] * 8, max_tokens=4)
        await api.core.until(lambda core: len(core.requests) == 1)
        async with api.session.post(api.url + "/v1/completions", json={"prompt": [300] * 3}) as response:
            assert response.status == 429
            assert (await response.json())["error"]["code"] == "overloaded"
            assert 1 <= int(response.headers["Retry-After"]) <= 60
        await api.send_tokens(0, "a")
        (await first).close()
        task = asyncio.create_task(api.complete(prompt=[300] * 3))
        await api.send_tokens(1, "ab", "length")
        assert (await task)[0] == 200


async def test_a_queue_full_of_one_tenant_s_requests_has_a_place_for_another_one() -> None:
    http = HttpConfig(is_trusting_tenant_headers=True)
    config = make_serve_config(http=http, max_queued_requests=1)
    async with running_api(config=config, ready=make_ready(max_num_seqs=1)) as api:

        async def ask(tenant: str) -> int:
            headers = {"x-tidemill-tenant": tenant}
            return (await api.post("/v1/completions", {"prompt": "hi"}, headers=headers))[0]

        tasks = [asyncio.create_task(ask("loud")) for _ in range(2)]
        await api.core.until(lambda core: len(core.requests) == 2)
        assert await ask("loud") == 429
        tasks.append(asyncio.create_task(ask("quiet")))
        await api.core.until(lambda core: len(core.requests) == 3)
        assert await ask("quiet") == 429
        for index in range(3):
            await api.send_tokens(index, "a", "length")
        assert await asyncio.gather(*tasks) == [200] * 3
