"""Keys, tenants and several gateways on a real cluster: from a Secret to an answer, and nothing cut."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest
from harness.kubectl import wait_until
from harness.session import RELEASE_NAMESPACE

from e2e_support import Namespace, http_session, wait_routed

if TYPE_CHECKING:
    import aiohttp
    from openai import AsyncOpenAI

pytestmark = pytest.mark.cluster
NUM_TOKENS = 200


def put_keys(space: Namespace, **keys: str) -> None:
    """Write the Secret that the service names."""
    data = {tenant: base64.b64encode(key.encode()).decode() for tenant, key in keys.items()}
    space.cluster.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "team-keys", "namespace": space.name},
            "data": data,
        }
    )


async def status_with(space: Namespace, http: aiohttp.ClientSession, key: str) -> int:
    headers = {"Host": space.host("locked"), "Authorization": f"Bearer {key}"}
    body = {"model": "locked", "prompt": "hello", "max_tokens": 2}
    url = f"{space.cluster.ingress_url}/v1/completions"
    async with http.post(url, json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


async def until_status(space: Namespace, http: aiohttp.ClientSession, key: str, status: int) -> None:
    async with asyncio.timeout(120):
        while await status_with(space, http, key) != status:  # noqa: ASYNC110 - a Secret has no event here
            await asyncio.sleep(0.5)


async def test_a_secrets_keys_let_tenants_in_and_are_replaced_without_a_restart(
    space: Namespace, sim_engine: str
) -> None:
    put_keys(space, red="key-one")
    routing: dict[str, Any] = {
        "ingress": {"className": "nginx", "host": space.host("locked")},
        "auth": {"secretRef": {"name": "team-keys"}},
        "tenants": [{"name": "red", "weight": 2}],
    }
    space.apply_sim("locked", sim_engine, routing=routing)
    await asyncio.to_thread(space.wait_ready, "locked")
    async with http_session() as http:
        await until_status(space, http, "key-one", 200)
        assert await status_with(space, http, "wrong") == 401
        assert await status_with(space, http, "") == 401
        pod = space.pods("locked")[0]["metadata"]["name"]
        await asyncio.to_thread(put_keys, space, red="key-two")
        await until_status(space, http, "key-two", 200)
        await until_status(space, http, "key-one", 401)
    logs = space.cluster.kubectl("logs", "-n", space.name, pod, "-c", "engine").stdout
    gateways = space.cluster.kubectl(
        "logs", "-n", RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=gateway", "--tail=-1"
    ).stdout
    assert "tenant=red" in gateways
    projected = space.cluster.kubectl.get("secret", "-n", RELEASE_NAMESPACE, "tidemill-gateway-keys")
    shown = base64.b64decode(projected["data"][f"{space.name}.locked"]).decode()
    assert not any(key in text for key in ("key-one", "key-two") for text in (logs, gateways, shown))


async def test_streams_finish_while_the_gateways_are_rolled(space: Namespace, sim_engine: str) -> None:
    space.apply_sim("steady", sim_engine, uri="sim://steady?step_ms=40")
    await asyncio.to_thread(space.wait_ready, "steady")
    begun = [asyncio.Event() for _ in range(4)]
    async with space.client(space.host("steady")) as client:
        await wait_routed(client)
        reading = [asyncio.create_task(read_stream(client, number, begun[number])) for number in range(4)]
        async with asyncio.timeout(120):
            await asyncio.gather(*(event.wait() for event in begun))
        kubectl = space.cluster.kubectl
        await asyncio.to_thread(
            kubectl, "rollout", "restart", "-n", RELEASE_NAMESPACE, "deployment/tidemill-gateway"
        )
        async with asyncio.timeout(120):
            assert await asyncio.gather(*reading) == [NUM_TOKENS] * 4

        def is_rolled() -> bool:
            status = kubectl.get("deployment", "-n", RELEASE_NAMESPACE, "tidemill-gateway")["status"]
            return bool(status.get("updatedReplicas") == status.get("readyReplicas") == status["replicas"])

        await asyncio.to_thread(wait_until, "the gateways are rolled", is_rolled)
        assert (await client.completions.create(model="steady", prompt="x", max_tokens=2)).choices


async def read_stream(client: AsyncOpenAI, number: int, begun: asyncio.Event) -> int:
    """Return how many tokens a stream had by its own account."""
    stream = await client.completions.create(
        model="steady",
        prompt=f"question {number}",
        max_tokens=NUM_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    num_tokens = 0
    async for chunk in stream:
        begun.set()
        num_tokens = chunk.usage.completion_tokens if chunk.usage else num_tokens
    return num_tokens
