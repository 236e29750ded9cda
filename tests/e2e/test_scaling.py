"""Load from zero to N and back on a real cluster: nothing lost, every step explained, whatever restarts."""

from __future__ import annotations

import asyncio
import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from harness.kubectl import wait_until
from harness.session import RELEASE_NAMESPACE
from openai import APIConnectionError

from e2e_support import Namespace, Object, http_session, in_full

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream
    from openai.types import Completion

pytestmark = pytest.mark.cluster
GATEWAYS = "app.kubernetes.io/component=gateway"
OPERATORS = "app.kubernetes.io/component=operator"
RULES = {"stabilizationWindowSeconds": 4}
ZERO: Object = {
    "minReplicas": 0,
    "maxReplicas": 4,
    "targets": {"queueLengthPerReplica": 1},
    "behavior": {"scaleDown": RULES},
    "scaleToZero": {"idleAfter": "6s", "activationTimeout": "60s"},
    "metrics": {"interval": "1s", "staleAfter": "5s"},
}


def to_zero(**changes: Any) -> Object:
    return {**ZERO, "scaleToZero": {**ZERO["scaleToZero"], **changes}}


def ready(space: Namespace, name: str) -> tuple[str, str]:
    found = space.condition(name, "Ready")
    return found.get("status", ""), found.get("reason", "")


def is_at_zero(space: Namespace, name: str) -> bool:
    return ready(space, name) == ("True", "ScaledToZero") and not space.pods(name)


def events(space: Namespace, name: str, *reasons: str) -> list[Object]:
    found = space.cluster.kubectl.items("events", "-n", space.name, "--sort-by=.lastTimestamp")
    return [e for e in found if e["involvedObject"]["name"] == name and e["reason"] in reasons]


def component_pods(space: Namespace, selector: str) -> list[str]:
    pods = space.cluster.kubectl.items("pods", "-n", RELEASE_NAMESPACE, "-l", selector)
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _all_pods(space: Namespace, selector: str) -> list[str]:
    """Return the pods of a component, those that are going away and those that ended included."""
    pods = space.cluster.kubectl.items("pods", "-n", RELEASE_NAMESPACE, "-l", selector)
    return [pod["metadata"]["name"] for pod in pods]


@pytest.fixture(scope="module")
def asleep(module_space: Namespace, sim_engine: str) -> Namespace:
    """Offer three services that have been ready once and went to zero by themselves."""
    space = module_space
    common = {"replicas": None, "drain": {"timeout": "30s"}}
    space.apply_sim(
        "tide", sim_engine, uri="sim://tide?step_ms=25", scaling=ZERO, engine=few(sim_engine), **common
    )
    space.apply_sim(
        "herd",
        sim_engine,
        uri="sim://herd?step_ms=5&startup_ms=1500",
        scaling=to_zero(maxBufferedRequests=40),
        **common,
    )
    space.apply_sim(
        "held", sim_engine, uri="sim://held?step_ms=5&startup_ms=6000", scaling=to_zero(), **common
    )
    for name in ("tide", "herd", "held"):
        wait_until(f"{name} at zero", functools.partial(is_at_zero, space, name))
    return space


def few(image: str) -> Object:
    return {"image": image, "maxNumSeqs": 2}


def test_at_zero_the_status_says_that_a_request_is_all_it_needs(asleep: Namespace) -> None:
    assert ready(asleep, "tide") == ("True", "ScaledToZero")
    available = asleep.condition("tide", "Available")
    assert (available["status"], available["reason"]) == ("False", "ScaledToZero")
    status = asleep.service("tide")["status"]
    assert status["desiredReplicas"] == 0
    assert status["scaling"]["firstReadyTime"]
    assert status["scaling"]["learned"]["startupMilliseconds"] > 0
    assert [event["reason"] for event in events(asleep, "tide", "ScaledDown")] == ["ScaledDown"]
    assert len(json.dumps(status)) < 8192


@dataclass(kw_only=True)
class Load:
    """Streams that follow each other until they are told to end; every one is counted."""

    client: AsyncOpenAI
    num_done: int = 0
    failures: list[str] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, number: int) -> None:
        while not self.is_over.is_set():
            try:
                await self._stream(number)
            except Exception as error:
                self.failures.append(in_full(error))
            self.num_done += 1

    async def _begin(self, number: int) -> AsyncStream[Completion]:
        return await self.client.completions.create(
            model="tide",
            prompt=f"question {number}",
            max_tokens=60,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )

    async def _stream(self, number: int) -> None:
        """Read a stream to its end.

        A worker of nginx that ends after a reload closes kept connections, even with a request on its way.
        What fails behind nginx is a 502 or a cut stream, no APIConnectionError: one more try hides nothing.
        """
        try:
            stream = await self._begin(number)
        except APIConnectionError:
            stream = await self._begin(number)
        tokens = None
        async for chunk in stream:
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        if tokens != 60:
            raise AssertionError(f"a stream ended with {tokens} tokens")


async def test_load_from_zero_to_several_and_back_loses_no_request(asleep: Namespace) -> None:
    space = asleep
    async with space.client(space.host("tide")) as client:
        load = Load(client=client)
        running = [asyncio.create_task(load.run(number)) for number in range(16)]
        await asyncio.to_thread(
            wait_until,
            "three ready replicas",
            lambda: space.service("tide")["status"].get("readyReplicas", 0) >= 3,
        )
        former = await asyncio.to_thread(component_pods, space, GATEWAYS)
        await asyncio.to_thread(_restart_everything_else, space)
        so_far = load.num_done
        await asyncio.to_thread(
            wait_until,
            "the former gateways gone and every stream's place taken by another",
            lambda: load.num_done >= so_far + 32 and not set(former) & set(_all_pods(space, GATEWAYS)),
        )
        load.is_over.set()
        await asyncio.wait_for(asyncio.gather(*running), timeout=120)
    assert load.failures == []
    await asyncio.to_thread(wait_until, "zero again", lambda: is_at_zero(space, "tide"), timeout_seconds=200)
    told = [event["message"] for event in events(space, "tide", "ScaledUp", "ScaledDown")]
    assert any(message.startswith("Scaled from 0 to") for message in told)
    assert any("to 0 replicas: Idle" in message for message in told)
    history = space.service("tide")["status"]["scaling"]["history"]
    assert history[0]["to"] == 0
    assert all(entry["reason"] and entry["message"] for entry in history)


def _restart_everything_else(space: Namespace) -> None:
    """Kill the operator and roll the gateways, as an upgrade in a storm would."""
    kubectl = space.cluster.kubectl
    if space.cluster.containerd_socket is not None:
        for pod in component_pods(space, OPERATORS):
            space.cluster.kill_container(RELEASE_NAMESPACE, pod)
    kubectl("rollout", "restart", "-n", RELEASE_NAMESPACE, "deployment/tidemill-gateway")
    kubectl("rollout", "status", "-n", RELEASE_NAMESPACE, "deployment/tidemill-gateway", "--timeout=120s")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a plain request came to; status 0: the connection broke."""

    status: int
    retry_after: str = ""


async def ask(space: Namespace, name: str, http: aiohttp.ClientSession, number: int) -> Answer:
    url = f"{space.cluster.ingress_url}/v1/completions"
    body = {"model": name, "prompt": f"question {number}", "max_tokens": 4}
    try:
        async with http.post(url, json=body, headers={"Host": space.host(name)}) as answer:
            await answer.read()
            return Answer(status=answer.status, retry_after=answer.headers.get("Retry-After", ""))
    except aiohttp.ClientError:
        return Answer(status=0)


def make_session() -> aiohttp.ClientSession:
    return http_session(timeout=aiohttp.ClientTimeout(total=90))


async def test_a_herd_at_a_sleeping_service_is_one_activation_and_every_accepted_request_is_answered(
    asleep: Namespace,
) -> None:
    space = asleep
    async with make_session() as http:
        answers = await asyncio.gather(*(ask(space, "herd", http, number) for number in range(200)))
    statuses = {answer.status for answer in answers}
    assert statuses == {200, 429}
    num_answered = sum(answer.status == 200 for answer in answers)
    assert 20 <= num_answered <= 120
    refused = [answer for answer in answers if answer.status == 429]
    assert all(int(answer.retry_after) > 0 for answer in refused)
    ups = [e["message"] for e in events(space, "herd", "ScaledUp") if "from 0 to" in e["message"]]
    assert len(ups) == 1


async def test_a_killed_gateway_loses_its_own_connections_alone_and_the_service_wakes(
    asleep: Namespace,
) -> None:
    space = asleep
    if space.cluster.containerd_socket is None:
        pytest.skip("an existing cluster does not let tests kill a container's process")
    before = component_pods(space, GATEWAYS)
    assert len(before) == 2
    async with make_session() as http:
        waiting = [asyncio.create_task(ask(space, "held", http, number)) for number in range(8)]

        def is_asked() -> bool:
            return bool(space.service("held")["status"].get("activation", {}).get("requestTime"))

        await asyncio.to_thread(wait_until, "the wish to wake", is_asked)
        await asyncio.to_thread(space.cluster.kill_container, RELEASE_NAMESPACE, before[0])
        answers = await asyncio.gather(*waiting)
        assert {answer.status for answer in answers} <= {200, 0, 502, 503}
        assert any(answer.status == 200 for answer in answers)
        again = [ask(space, "held", http, n) for n, answer in enumerate(answers) if answer.status != 200]
        assert {answer.status for answer in await asyncio.gather(*again)} <= {200}
    assert ready(space, "held")[0] == "True"


def test_an_hpa_may_scale_a_service_whose_replicas_nobody_else_decides(
    space: Namespace, sim_engine: str
) -> None:
    space.apply_sim("byhand", sim_engine)
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "byhand"},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "serving.tidemill.dev/v1alpha1",
                "kind": "InferenceService",
                "name": "byhand",
            },
            "minReplicas": 2,
            "maxReplicas": 3,
        },
    }
    space.cluster.kubectl("apply", "-n", space.name, "-f", "-", stdin=json.dumps(hpa))
    wait_until("two replicas", lambda: len(space.pods("byhand")) == 2)
    assert space.service("byhand")["spec"]["replicas"] == 2


def test_the_figures_are_there_for_keda_at_every_operator_pod(asleep: Namespace) -> None:
    (pod,) = component_pods(asleep, OPERATORS)
    path = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/pods/{pod}:8081/proxy/scaling/{asleep.name}/tide"
    document = json.loads(asleep.cluster.kubectl("get", "--raw", path).stdout)
    assert document["desiredReplicas"] == asleep.service("tide")["status"]["desiredReplicas"]
    assert document["maxReplicas"] == 4
    assert {"queueLength", "unclampedReplicas", "reason"} <= document.keys()


@pytest.mark.real_model
@pytest.mark.timeout(600)
async def test_the_real_model_sleeps_and_wakes_for_a_request(space: Namespace, real_engine: str) -> None:
    space.apply_sim(
        "real",
        real_engine,
        uri="builtin://smollm2-135m",
        replicas=None,
        resources={"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
        scaling=to_zero(activationTimeout="240s"),
    )
    await asyncio.to_thread(
        wait_until, "the model at zero", lambda: is_at_zero(space, "real"), timeout_seconds=300
    )
    async with space.client(space.host("real")) as client:
        answer = await client.with_options(timeout=300).completions.create(
            model="real", prompt="The capital of France is", max_tokens=6, temperature=0
        )
    assert "Paris" in answer.choices[0].text
    learned = space.service("real")["status"]["scaling"]["learned"]
    assert learned["startupMilliseconds"] > 0
