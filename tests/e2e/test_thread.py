"""The whole product once: chart, real model in a real pod from the real image, ingress, official client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until

from e2e_support import Namespace, wait_routed

if TYPE_CHECKING:
    from openai.types import CompletionUsage

pytestmark = [pytest.mark.cluster, pytest.mark.real_model, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "smollm2.yaml"
HOST = "chat.example.com"


@pytest.fixture(scope="module")
def chat(module_space: Namespace, real_engine: str) -> Namespace:
    """Offer the namespace in which the example is applied and Ready."""
    module_space.cluster.kubectl("apply", "-n", module_space.name, "-f", EXAMPLE)
    module_space.wait_ready("chat", timeout_seconds=240)
    return module_space


async def test_a_streamed_chat_through_the_ingress_answers_sensibly(chat: Namespace) -> None:
    async with chat.client(HOST) as client:
        await wait_routed(client)
        stream = await client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
            max_tokens=40,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        pieces: list[str] = []
        finish: list[str] = []
        usage: CompletionUsage | None = None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finish += [choice.finish_reason] if choice.finish_reason else []
    assert "Paris" in "".join(pieces)
    assert len([piece for piece in pieces if piece]) > 3
    assert finish == ["stop"]
    assert usage is not None
    assert usage.prompt_tokens > 10
    assert 3 < usage.completion_tokens <= 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_kubectl_shows_the_service(chat: Namespace) -> None:
    lines = chat.cluster.kubectl("get", "infsvc", "-n", chat.name).stdout.splitlines()
    row = dict(zip(lines[0].split(), lines[1].split(), strict=False))
    assert row["NAME"] == "chat"
    assert row["MODEL"] == "builtin://smollm2-135m"
    assert row["READY"] == "True"


def test_kubectl_scale_adds_a_second_replica(chat: Namespace) -> None:
    chat.cluster.kubectl("scale", "-n", chat.name, "infsvc/chat", "--replicas=2")

    def has_two_ready() -> bool:
        return bool(chat.service("chat")["status"].get("readyReplicas") == 2)

    wait_until("two ready replicas", has_two_ready, timeout_seconds=240)
    assert len(chat.pods("chat")) == 2


def test_deleting_the_service_removes_everything(chat: Namespace) -> None:
    assert chat.pods("chat")
    chat.cluster.kubectl("delete", "-n", chat.name, "infsvc/chat")
    wait_until("an empty namespace", lambda: not chat.owned(), timeout_seconds=120)
