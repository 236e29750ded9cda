"""Measures what prefix-aware placement saves over four real engines: hit ratio and prompt tokens computed.

Knows a workload of documents that are asked about again and again, and how to start engines with the fake
runner, whose scheduler and KV cache are the real ones. All documents together are more than one engine's
cache holds and less than the four hold. Round robin is done by this client itself, straight to the engines;
figures are what the engines say in each answer's usage. Each way starts with fresh engines.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp

from tidemill_bench.gateway.cost import running
from tidemill_bench.gateway.engines import running_engine

URI = "sim://chat?step_ms=1"


@dataclass(frozen=True, kw_only=True)
class PrefixPlan:
    """The workload and the engines' size."""

    num_engines: int = 4
    num_documents: int = 32
    num_questions: int = 8
    document_characters: int = 3000
    cache_documents: float = 12.0
    max_at_once: int = 8
    seed: int = 1


@dataclass(kw_only=True)
class Reuse:
    """What the engines said that they read and found."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def hit_ratio(self) -> float:
        """Give the share of prompt tokens that were found in a cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def computed_tokens(self) -> int:
        """Give the prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens


async def measure_prefix(plan: PrefixPlan) -> dict[str, Any]:
    """Ask the same questions round robin and through the gateway; give both figures and their ratio."""
    tokens_per_document = await _count_tokens(plan)
    num_blocks = round(plan.cache_documents * tokens_per_document / 16)
    results = {}
    for way in ("round_robin", "prefix_aware"):
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(running_engine(URI, *_blocks(num_blocks)))
                for _ in range(plan.num_engines)
            ]
            if way == "prefix_aware":
                targets = [argument for engine in engines for argument in ("--target", engine)]
                gateway = await stack.enter_async_context(running("gateway", *targets))
                results[way] = await _ask_all(plan, [gateway.address])
            else:
                results[way] = await _ask_all(plan, engines)
    ours, theirs = results["prefix_aware"], results["round_robin"]
    return {
        "engines": plan.num_engines,
        "requests": plan.num_documents * plan.num_questions,
        "hit_ratio": {name: round(found.hit_ratio, 4) for name, found in results.items()},
        "computed_prompt_tokens": {name: found.computed_tokens for name, found in results.items()},
        "hit_ratio_over_round_robin": round(ours.hit_ratio / max(theirs.hit_ratio, 1e-9), 2),
    }


def document(number: int, num_characters: int) -> str:
    """Write a document that shares nothing with the others."""
    draw = random.Random(number)  # noqa: S311 - a workload, not a secret
    words = (
        f"{draw.choice('bcdfglmnprst')}{draw.choice('aeiou')}{draw.randrange(100)}" for _ in iter(int, 1)
    )
    text = ""
    while len(text) < num_characters:
        text += next(words) + " "
    return text


async def _ask_all(plan: PrefixPlan, addresses: Sequence[str]) -> Reuse:
    """Ask every question, of the addresses in turn."""
    asked = [
        (number, question) for number in range(plan.num_documents) for question in range(plan.num_questions)
    ]
    random.Random(plan.seed).shuffle(asked)  # noqa: S311 - a workload
    documents = [document(number, plan.document_characters) for number in range(plan.num_documents)]
    reuse, slots = Reuse(), asyncio.Semaphore(plan.max_at_once)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def ask(turn: int, number: int, question: int) -> None:
            async with slots:
                prompt = f"{documents[number]} Question {question}?"
                _note(reuse, await _complete(session, addresses[turn % len(addresses)], prompt))

        await asyncio.gather(*(ask(turn, *which) for turn, which in enumerate(asked)))
    return reuse


async def _complete(session: aiohttp.ClientSession, address: str, prompt: str) -> dict[str, Any]:
    body = {"model": "chat", "prompt": prompt, "max_tokens": 4}
    async with session.post(f"http://{address}/v1/completions", json=body) as response:
        document = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{address} answered {response.status}: {document}")
        return dict(document["usage"])


def _note(reuse: Reuse, usage: dict[str, Any]) -> None:
    reuse.prompt_tokens += usage["prompt_tokens"]
    reuse.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


async def _count_tokens(plan: PrefixPlan) -> int:
    async with running_engine(URI, *_blocks(4096)) as engine, aiohttp.ClientSession() as session:
        usage = await _complete(session, engine, document(0, plan.document_characters))
        return int(usage["prompt_tokens"])


def _blocks(num_blocks: int) -> tuple[str, ...]:
    return ("--block-size", "16", "--num-kv-blocks", str(num_blocks))
