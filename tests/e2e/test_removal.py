"""Replicas go while streams run, in every way in which a replica can go: no stream notices.

`make soak` runs the same tests with larger numbers.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING

import openai
import pytest
from harness.kubectl import wait_until

from e2e_support import Namespace, Object, wait_routed
from removal_support import (
    cordon_and_evict,
    read_stream,
    repeats,
    roll_out,
    scale,
    settle,
    under_load,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300 * max(1, repeats().scale_downs // 5))]
SIM = "sim://steady?step_ms=12"
MOST_REPLICAS = 5


def sim(space: Namespace, image: str, **fields: object) -> Namespace:
    # Less grace than by default saves time, and leaves the gateways less of it to hear the news.
    engine = {"image": image, "args": ["--drain-grace", "2"]}
    spec = {"uri": SIM, "engine": engine, "drain": {"timeout": "60s"}, **fields}
    space.apply_sim("steady", image, rollout={"maxSurge": "100%"}, **spec)
    settle(space, "steady", int(str(spec.get("replicas", 1))))
    return space


@pytest.fixture(scope="module")
def steady(module_space: Namespace, sim_engine: str) -> Namespace:
    """Offer a service of three replicas, brought up once."""
    return sim(module_space, sim_engine, replicas=3)


@pytest.fixture
def three(steady: Namespace) -> Namespace:
    """Offer the service with three replicas again, whatever the last test left."""
    scale(steady, "steady", 3)
    settle(steady, "steady", 3)
    return steady


async def test_scale_downs_cut_no_stream(three: Namespace) -> None:
    async with under_load(three, "steady", "scale-down by one") as load:
        replicas = 3
        for _ in range(repeats().scale_downs):
            if replicas == 1:
                replicas = MOST_REPLICAS
                await asyncio.to_thread(scale, three, "steady", replicas)
                await asyncio.to_thread(settle, three, "steady", replicas)
            replicas -= 1
            before = load.num_done
            with load.disturbed():
                await asyncio.to_thread(scale, three, "steady", replicas)
                await asyncio.to_thread(settle, three, "steady", replicas)
            # A replica that served nobody may be gone before any stream has come to its end.
            await asyncio.to_thread(wait_until, "a stream's end", lambda num=before: load.num_done > num)


async def test_rollouts_cut_no_stream(three: Namespace) -> None:
    async with under_load(three, "steady", "rollout of three replicas") as load:
        for number in range(repeats().rollouts):
            with load.disturbed():
                await asyncio.to_thread(roll_out, three, "steady", number)
                await asyncio.to_thread(settle, three, "steady", 3)


async def test_evictions_from_a_cordoned_node_cut_no_stream(three: Namespace) -> None:
    async with under_load(three, "steady", "eviction from a cordoned node") as load:
        for _ in range(repeats().evictions):
            with load.disturbed():
                await asyncio.to_thread(cordon_and_evict, three, "steady")
                await asyncio.to_thread(settle, three, "steady", 3)


async def test_a_scale_down_right_after_a_rotation_of_the_admin_token_is_a_drain(three: Namespace) -> None:
    """Engines know the new token only when the kubelet has brought it, up to a minute later."""
    kubectl, secret = three.cluster.kubectl, ("-n", three.name, "secret/steady-admin-token")
    before = _told(three)
    async with under_load(three, "steady", "scale-down after a rotation") as load:
        await asyncio.to_thread(kubectl, "delete", *secret)
        await asyncio.to_thread(wait_until, "a new token", lambda: kubectl.find(*secret))
        with load.disturbed():
            await asyncio.to_thread(scale, three, "steady", 2)
            await asyncio.to_thread(settle, three, "steady", 2)
    told = _told(three) - before
    assert told["DrainStarted"] == 1
    assert told["DrainUnreachable"] == 0


def _told(space: Namespace) -> Counter[str]:
    """Count the events of a namespace by their reasons."""
    told: Counter[str] = Counter()
    for event in space.cluster.kubectl.items("events", "-n", space.name):
        told[event["reason"]] += event.get("count", 1)
    return told


async def test_the_replica_with_the_least_to_do_is_the_one_that_goes(three: Namespace) -> None:
    """The busiest of the replicas survives: with two streams on three replicas, the idle one goes at once."""
    async with three.client(three.host("steady")) as client:
        await wait_routed(client)
        begun = [asyncio.Event() for _ in range(2)]
        reading = [
            asyncio.create_task(read_stream(client, "steady", f"long {n}", 1500, begun[n])) for n in range(2)
        ]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), timeout=120)
        await asyncio.to_thread(scale, three, "steady", 2)
        await asyncio.to_thread(settle, three, "steady", 2)
        assert not any(task.done() for task in reading)
        await asyncio.gather(*reading)


async def test_a_drain_beyond_its_deadline_cuts_only_what_was_left_and_says_so(
    space: Namespace, sim_engine: str
) -> None:
    space.apply_sim("hasty", sim_engine, uri="sim://hasty?step_ms=20", drain={"timeout": "3s"})
    space.wait_ready("hasty")
    async with space.client(space.host("hasty")) as client:
        await wait_routed(client)
        short = asyncio.create_task(read_stream(client, "hasty", "short", 200))
        long = asyncio.create_task(read_stream(client, "hasty", "long", 3000))
        await asyncio.to_thread(wait_until, "two streams", lambda: _is_busy(space))
        await asyncio.to_thread(scale, space, "hasty", 0)
        assert await short
        with pytest.raises(openai.APIError):
            await long

    (message,) = await asyncio.to_thread(wait_until, "the event", lambda: _told_cuts(space))
    assert "1 streams are cut" in message


@pytest.mark.parametrize("cascade", ["foreground", "background"])
async def test_a_deletion_that_cuts_streams_says_how_many(
    space: Namespace, sim_engine: str, cascade: str
) -> None:
    space.apply_sim("hasty", sim_engine, uri="sim://hasty?step_ms=20", drain={"timeout": "2s"})
    space.wait_ready("hasty")
    async with space.client(space.host("hasty")) as client:
        await wait_routed(client)
        streams = [asyncio.create_task(read_stream(client, "hasty", f"long {n}", 3000)) for n in range(2)]
        await asyncio.to_thread(wait_until, "two streams", lambda: _is_busy(space))
        delete = ("delete", "-n", space.name, "infsvc/hasty", f"--cascade={cascade}", "--wait=false")
        await asyncio.to_thread(space.cluster.kubectl, *delete)
        for stream in streams:
            with pytest.raises(openai.APIError):
                await stream
    (message,) = await asyncio.to_thread(wait_until, "the event", lambda: _told_cuts(space))
    assert "2 streams are cut" in message


def _told_cuts(space: Namespace) -> list[str]:
    events = space.cluster.kubectl.items("events", "-n", space.name)
    return [event["message"] for event in events if event["reason"] == "DrainTimeout"]


def _is_busy(space: Namespace) -> bool:
    """Ask the engine from inside its pod how many requests it has."""
    pod = space.pods("hasty")[0]["metadata"]["name"]
    shown = space.cluster.kubectl("exec", "-n", space.name, pod, "--", "python", "-c", ASK_LOAD).stdout
    return bool(json.loads(shown)["in_flight_requests"] == 2)


ASK_LOAD = """
import pathlib, urllib.request
token = pathlib.Path("/var/run/tidemill/admin/token").read_text().strip()
request = urllib.request.Request("http://127.0.0.1:8001/load", headers={"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(request).read().decode())
"""


async def test_deleting_a_service_lets_its_streams_finish(space: Namespace, sim_engine: str) -> None:
    space.apply_sim("leaving", sim_engine, uri="sim://leaving?step_ms=20", drain={"timeout": "60s"})
    space.wait_ready("leaving")
    async with space.client(space.host("leaving")) as client:
        await wait_routed(client)
        undisturbed = await read_stream(client, "leaving", "to the end", 240)
        begun = asyncio.Event()
        reading = asyncio.create_task(read_stream(client, "leaving", "to the end", 240, begun))
        await asyncio.wait_for(begun.wait(), timeout=120)
        await asyncio.to_thread(
            space.cluster.kubectl, "delete", "-n", space.name, "infsvc/leaving", "--cascade=foreground"
        )
        assert await reading == undisturbed
    await asyncio.to_thread(wait_until, "an empty namespace", lambda: not space.owned())


async def test_a_rollout_goes_on_where_every_gpu_is_taken_and_says_how(
    space: Namespace, sim_engine: str
) -> None:
    node = space.cluster.kubectl.items("nodes")[0]
    gpus = int(node["status"]["allocatable"]["nvidia.com/gpu"])
    limits = {"memory": "512Mi", "nvidia.com/gpu": 1}
    space.apply_sim(
        "gpus", sim_engine, replicas=gpus, resources={"requests": {"memory": "128Mi"}, "limits": limits}
    )
    settle(space, "gpus", gpus)
    async with under_load(space, "gpus", "rollout with every GPU taken", num_clients=4):
        await asyncio.to_thread(roll_out, space, "gpus", 1)

        def said() -> Object | None:
            found = space.condition("gpus", "CapacityAvailable")
            return found if found.get("reason") == "NoRoomToSurge" else None

        condition = await asyncio.to_thread(wait_until, "the condition", said)
        assert "nvidia.com/gpu" in condition["message"]
        await asyncio.to_thread(settle, space, "gpus", gpus)
    revisions = {pod["metadata"]["labels"]["serving.tidemill.dev/revision"] for pod in space.pods("gpus")}
    assert revisions == {space.service("gpus")["status"]["revision"]["update"]}


# One request at a time, whole prompts, one set of kernels: rounding is then the same in every replica.
SAME_NUMBERS = ["--no-enable-prefix-caching", "--cpu-kernels", "avx2"]


@pytest.fixture
def real(space: Namespace, real_engine: str) -> Iterator[Namespace]:
    """Offer a service of two replicas of the real model."""
    space.apply_sim(
        "real",
        real_engine,
        uri="builtin://smollm2-135m",
        replicas=2,
        engine={"image": real_engine, "maxNumSeqs": 1, "args": SAME_NUMBERS},
        resources={"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}},
        drain={"timeout": "10m"},
    )
    settle(space, "real", 2, timeout_seconds=400)
    yield space
    space.cluster.kubectl("delete", "-n", space.name, "infsvc/real")


@pytest.mark.real_model
@pytest.mark.timeout(1200)
async def test_the_real_models_streams_survive_eviction_rollout_and_scale_down(
    real: Namespace,
) -> None:
    async with under_load(real, "real", "real model", num_clients=2, num_tokens=200):
        await asyncio.to_thread(cordon_and_evict, real, "real")
        await asyncio.to_thread(settle, real, "real", 2, timeout_seconds=400)
        await asyncio.to_thread(scale, real, "real", 1)
        await asyncio.to_thread(settle, real, "real", 1, timeout_seconds=400)
        await asyncio.to_thread(roll_out, real, "real", 1)
        await asyncio.to_thread(settle, real, "real", 1, timeout_seconds=400)
