"""Streams under which replicas come and go, each compared with what it says when nothing happens."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.kubectl import wait_until

from e2e_support import API_VERSION, Namespace, Object, in_full, wait_routed
from operator_process import Admin
from soak import note

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from openai import AsyncOpenAI

NUM_TOKENS = 240
"""Tokens of every stream."""


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How often each disturbance happens: a little in the tests, much in the soak."""

    scale_downs: int
    rollouts: int
    evictions: int


def repeats() -> Repeats:
    """Read from TIDEMILL_SOAK_REPEATS (scale-downs, rollouts, evictions) how often; 5,2,2 without it."""
    words = os.environ.get("TIDEMILL_SOAK_REPEATS", "5,2,2").split(",")
    scale_downs, rollouts, evictions = (int(word) for word in words)
    return Repeats(scale_downs=scale_downs, rollouts=rollouts, evictions=evictions)


@dataclass(kw_only=True)
class Load:
    """Clients that ask again and again, and what became of their streams."""

    client: AsyncOpenAI
    model: str
    expected: dict[str, str]
    num_tokens: int
    num_done: int = 0
    begun: dict[str, asyncio.Event] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stopping: bool = False

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Measure how long a disturbance lasts, from the order to the last replica settled."""
        began_at = time.monotonic()
        yield
        self.seconds.append(time.monotonic() - began_at)

    async def ask(self, prompt: str) -> None:
        """Run one stream and compare it."""
        try:
            text = await read_stream(self.client, self.model, prompt, self.num_tokens, self.begun[prompt])
        except Exception as error:
            self.wrong.append(f"{prompt}: {in_full(error)}")
        else:
            if text != self.expected[prompt]:
                self.wrong.append(f"{prompt}: {text!r} and not {self.expected[prompt]!r}")
            self.num_done += 1

    async def keep_asking(self, number: int) -> None:
        """Be one client, which asks its prompts in turn until the load ends."""
        prompts = list(self.expected)
        while not self.stopping:
            await self.ask(prompts[number % len(prompts)])
            number += 1


async def read_stream(
    client: AsyncOpenAI, model: str, prompt: str, num_tokens: int, begun: asyncio.Event | None = None
) -> str:
    """Return one streamed answer and tell of its first token; one that ends early is an error."""
    stream = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=num_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    pieces: list[str] = []
    usage = None
    async for chunk in stream:
        if begun is not None:
            begun.set()
        pieces += [choice.text for choice in chunk.choices]
        usage = chunk.usage or usage
    if usage is None or usage.completion_tokens != num_tokens:
        raise AssertionError(f"the stream was cut: {usage}")
    return "".join(pieces)


@asynccontextmanager
async def under_load(
    space: Namespace, service: str, what: str, *, num_clients: int = 6, num_tokens: int = NUM_TOKENS
) -> AsyncIterator[Load]:
    """Keep clients streaming; at the end every stream must have been complete and as if undisturbed.

    `what` names the disturbance in the figures that are printed.
    """
    async with space.client(space.host(service)) as client:
        await wait_routed(client)
        prompts = [f"question {number}" for number in range(num_clients)]
        answers = await asyncio.gather(*(read_stream(client, service, p, num_tokens) for p in prompts))
        expected = dict(zip(prompts, answers, strict=True))
        load = Load(client=client, model=service, expected=expected, num_tokens=num_tokens)
        load.begun = {prompt: asyncio.Event() for prompt in prompts}
        clients = [asyncio.create_task(load.keep_asking(number)) for number in range(num_clients)]
        try:
            await asyncio.gather(*(event.wait() for event in load.begun.values()))
            yield load
            load.stopping = True
            await asyncio.gather(*clients)
        finally:
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
    note(what, load.seconds, num_streams=load.num_done, num_cut=len(load.wrong))
    assert not load.wrong, load.wrong
    assert load.num_done >= num_clients


def settle(space: Namespace, service: str, replicas: int, *, timeout_seconds: int = 120) -> None:
    """Wait until a service has exactly so many replicas, all ready, and nothing is under way."""
    admin = Admin(space.cluster)
    path = f"/apis/{API_VERSION}/namespaces/{space.name}/inferenceservices/{service}"
    wait_until(
        f"{service} settled at {replicas}",
        lambda: _is_settled(admin("GET", path), replicas),
        timeout_seconds=timeout_seconds,
    )


def _is_settled(shown: Object, replicas: int) -> bool:
    status = shown.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    progressing = conditions.get("Progressing", {})
    is_done = progressing.get("reason") == "Settled"
    is_new = progressing.get("observedGeneration") == shown["metadata"]["generation"]
    counts = (status.get("readyReplicas"), status.get("replicas"))
    return is_done and is_new and counts == (replicas, replicas)


def scale(space: Namespace, service: str, replicas: int) -> None:
    """Ask for a number of replicas."""
    space.cluster.kubectl("scale", "-n", space.name, f"infsvc/{service}", f"--replicas={replicas}")


def roll_out(space: Namespace, service: str, number: int) -> None:
    """Make a new revision."""
    change = json.dumps({"spec": {"engine": {"env": [{"name": "ROLLOUT", "value": str(number)}]}}})
    space.cluster.kubectl("patch", "-n", space.name, f"infsvc/{service}", "--type=merge", "-p", change)


def cordon_and_evict(space: Namespace, service: str) -> None:
    """Empty the node of one replica as `kubectl drain` does, and let pods come back once it has gone."""
    kubectl = space.cluster.kubectl
    node = kubectl.items("nodes")[0]["metadata"]["name"]
    victim = space.pods(service)[0]["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": victim, "namespace": space.name},
    }
    path = f"/api/v1/namespaces/{space.name}/pods/{victim}/eviction"

    def is_allowed() -> bool:
        asked = kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), check=False)
        return asked.returncode == 0

    kubectl("cordon", node)
    try:
        # The budget's controller notes a moment later than we that all replicas are ready again.
        wait_until("the eviction to be allowed", is_allowed)
        kubectl("wait", "-n", space.name, "--for=delete", f"pod/{victim}", "--timeout=400s")
    finally:
        kubectl("uncordon", node)
