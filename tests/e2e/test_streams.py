"""No stream is cut by what a cluster does every day: deleting a pod, scaling down, rolling out."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from e2e_support import Namespace, wait_routed

if TYPE_CHECKING:
    from collections.abc import Callable

    from openai import AsyncOpenAI

pytestmark = pytest.mark.cluster
NUM_STREAMS = 6
NUM_TOKENS = 120


def delete_a_pod(space: Namespace) -> None:
    pod = space.pods("steady")[0]["metadata"]["name"]
    space.cluster.kubectl("delete", "-n", space.name, "pod", pod, "--wait=false")


def scale_down(space: Namespace) -> None:
    space.cluster.kubectl("scale", "-n", space.name, "infsvc/steady", "--replicas=1")


def roll_out(space: Namespace) -> None:
    change = json.dumps({"spec": {"engine": {"maxNumSeqs": 64}}})
    space.cluster.kubectl("patch", "-n", space.name, "infsvc/steady", "--type=merge", "-p", change)


@pytest.mark.parametrize(
    "disturb",
    [
        pytest.param(delete_a_pod, id="when a pod is deleted"),
        pytest.param(scale_down, id="when the service is scaled down"),
        pytest.param(roll_out, id="when a new revision rolls out"),
    ],
)
async def test_every_stream_is_finished(
    space: Namespace, sim_engine: str, disturb: Callable[[Namespace], None]
) -> None:
    uri = "sim://steady?step_ms=40"
    space.apply_sim("steady", sim_engine, uri=uri, replicas=2, drain={"timeout": "60s"})
    space.wait_ready("steady")
    begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
    async with space.client(space.host("steady")) as client:
        await wait_routed(client)
        reading = [asyncio.create_task(count_tokens(client, n, begun[n])) for n in range(NUM_STREAMS)]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), timeout=120)
        await asyncio.to_thread(disturb, space)
        counts = await asyncio.wait_for(asyncio.gather(*reading), timeout=90)
    assert counts == [NUM_TOKENS] * NUM_STREAMS
    await asyncio.to_thread(space.wait_ready, "steady")


async def count_tokens(client: AsyncOpenAI, number: int, begun: asyncio.Event) -> int:
    """Return how many tokens a stream had by its own account; it fails when the stream ends without one."""
    stream = await client.completions.create(
        model="steady",
        prompt=f"question {number}",
        max_tokens=NUM_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    usage = None
    async for chunk in stream:
        begun.set()
        usage = chunk.usage or usage
    if usage is None:
        raise AssertionError(f"stream {number} was cut")
    return usage.completion_tokens
