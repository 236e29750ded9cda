"""What a user sees when something breaks: an engine core, a model, a client that asks for too much."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import openai
import pytest
from harness.kubectl import wait_until

from e2e_support import Namespace, Object, http_session, wait_routed

if TYPE_CHECKING:
    from openai import AsyncOpenAI

pytestmark = pytest.mark.cluster
KILL_CORE = """
import datetime, os, pathlib, signal
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    words = (folder / "cmdline").read_bytes().split(b"\\0")
    if b"tidemill_engine.core" in words:
        os.kill(int(folder.name), signal.SIGKILL)
        print(datetime.datetime.now(datetime.timezone.utc).isoformat())
"""
MAX_EXIT_SECONDS = 5


async def read_stream(client: AsyncOpenAI, first_token: asyncio.Event, max_tokens: int = 3000) -> str:
    """Return the text of one long streamed answer; says when its first token is there."""
    stream = await client.completions.create(
        model="crash", prompt="on and on", max_tokens=max_tokens, stream=True, extra_body={"ignore_eos": True}
    )
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].text
        first_token.set()
    return text


def kill_core(space: Namespace, pod: str) -> datetime:
    shown = space.cluster.kubectl("exec", "-n", space.name, pod, "--", "python", "-c", KILL_CORE).stdout
    return datetime.fromisoformat(shown.strip())


async def test_a_killed_core_ends_streams_with_an_error_and_the_kubelet_heals_the_pod(
    space: Namespace, sim_engine: str
) -> None:
    space.apply_sim("crash", sim_engine, uri="sim://crash?step_ms=20")
    space.wait_ready("crash")
    pod = space.pods("crash")[0]["metadata"]["name"]
    async with space.client(space.host("crash")) as client:
        await wait_routed(client)
        begun = asyncio.Event()
        reading = asyncio.create_task(read_stream(client, begun))
        await asyncio.wait_for(begun.wait(), timeout=120)
        killed_at = await asyncio.to_thread(kill_core, space, pod)
        with pytest.raises(openai.APIError, match="core"):
            await asyncio.wait_for(reading, timeout=120)

        def restarted() -> Object | None:
            status: Object = space.pods("crash")[0]["status"]["containerStatuses"][0]
            return status if status["restartCount"] == 1 and status["ready"] else None

        status = await asyncio.to_thread(wait_until, "the restarted container", restarted)
        ended = status["lastState"]["terminated"]
        assert ended["exitCode"] == 4
        assert json.loads(ended["message"])["reason"] == "CoreDied"
        # The kubelet reports whole seconds.
        assert datetime.fromisoformat(ended["finishedAt"]) - killed_at <= timedelta(seconds=MAX_EXIT_SECONDS)
        await asyncio.to_thread(space.wait_ready, "crash")
        await wait_routed(client)
        assert await read_stream(client, asyncio.Event(), max_tokens=5)


def test_a_model_that_cannot_be_loaded_shows_in_the_status_with_the_reason(
    space: Namespace, sim_engine: str
) -> None:
    space.apply_sim("broken", sim_engine, uri="sim://broken?fail=load:The%20weights%20are%20cut%20off")

    def failure() -> Object | None:
        found: Object | None = space.service("broken").get("status", {}).get("model", {}).get("lastFailure")
        return found

    last = wait_until("status.model.lastFailure", failure)
    assert "The weights are cut off" in last["message"]
    assert last["exitCode"] == 3

    def not_ready() -> Object | None:
        ready = space.condition("broken", "Ready")
        return ready if "The weights are cut off" in ready.get("message", "") else None

    ready = wait_until("the Ready condition", not_ready)
    assert ready["status"] == "False"
    assert ready["reason"] not in {"ReplicasStarting", "ModelLoading"}


async def test_sixteen_streams_at_once_are_complete_and_each_as_if_alone(
    space: Namespace, sim_engine: str
) -> None:
    space.apply_sim("many", sim_engine, replicas=2)
    space.wait_ready("many")

    async def answer(client: AsyncOpenAI, number: int) -> str:
        stream = await client.completions.create(
            model="many",
            prompt=f"question {number}",
            max_tokens=60,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with space.client(space.host("many")) as client:
        await wait_routed(client)
        together = await asyncio.gather(*(answer(client, number) for number in range(16)))
        alone = [await answer(client, number) for number in (0, 7, 15)]
    assert [together[number] for number in (0, 7, 15)] == alone
    assert all(together)
    assert len(set(together)) == 16


def test_a_gpu_request_is_scheduled_where_the_node_has_one(space: Namespace, sim_engine: str) -> None:
    resources = {"requests": {"memory": "128Mi"}, "limits": {"memory": "512Mi", "nvidia.com/gpu": 1}}
    space.apply_sim("gpu", sim_engine, resources=resources)
    space.wait_ready("gpu")
    pod = space.pods("gpu")[0]
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["spec"]["nodeName"]


def test_a_gpu_that_no_node_has_left_is_named_in_the_status(space: Namespace, sim_engine: str) -> None:
    resources = {"requests": {"memory": "128Mi"}, "limits": {"memory": "512Mi", "nvidia.com/gpu": 64}}
    space.apply_sim("huge", sim_engine, resources=resources)

    def unschedulable() -> bool:
        return "nvidia.com/gpu" in space.condition("huge", "Ready").get("message", "")

    wait_until("the scheduler's words in Ready", unschedulable)
    assert space.condition("huge", "Ready")["status"] == "False"


def test_an_engine_runs_where_only_restricted_pods_may(space: Namespace, sim_engine: str) -> None:
    labels = space.cluster.kubectl.get("namespace", space.name)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    space.apply_sim("strict", sim_engine)
    space.wait_ready("strict")
    container = space.pods("strict")[0]["spec"]["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


async def test_bad_requests_get_the_official_errors_and_the_engine_goes_on(
    space: Namespace, sim_engine: str
) -> None:
    space.apply_sim("limits", sim_engine, uri="sim://limits?max_model_len=256&num_blocks=64")
    space.wait_ready("limits")
    good = {"model": "limits", "prompt": "hello", "max_tokens": 4}
    bad: list[tuple[int, bytes]] = [
        (400, b'{"model": "limits", "prompt": '),
        (404, json.dumps({**good, "model": "nobody"}).encode()),
        (400, json.dumps({**good, "max_tokens": -1}).encode()),
        (400, json.dumps({**good, "prompt": [5] * 300}).encode()),
    ]
    async with space.client(space.host("limits")) as client:
        await wait_routed(client)
        url = f"{client.base_url}completions"
        headers = {"Host": space.host("limits"), "Content-Type": "application/json"}
        async with http_session(headers=headers) as http:
            for status, body in bad:
                async with http.post(url, data=body) as answer:
                    text = await answer.text()
                    assert answer.status == status, text
                    assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
        assert (await client.completions.create(model="limits", prompt="hello", max_tokens=4)).choices[0].text
    assert space.pods("limits")[0]["status"]["containerStatuses"][0]["restartCount"] == 0
