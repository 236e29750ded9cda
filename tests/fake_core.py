"""A core without scheduler or model, in the test's own process, that speaks real frames over a socketpair.

What it answers to a request is a function given by the test; what it is sent it writes down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from tidemill_engine import sim_vocab
from tidemill_engine.errors import PeerGone
from tidemill_engine.ipc import socket_pair
from tidemill_engine.ipc_async import AsyncFrameConnection
from tidemill_engine.messages import (
    ApiFrame,
    CoreFrame,
    CoreMessage,
    CoreReady,
    CoreStats,
    EngineRequest,
    RequestOutput,
    Shutdown,
)

Script = Callable[[EngineRequest], Iterable[RequestOutput]]


def tokens_of(text: str) -> list[int]:
    """Spell a text in the sim vocabulary, byte by byte."""
    return [sim_vocab.FIRST_BYTE + byte for byte in text.encode()]


def spell(text: str, *, finish_reason: str = "stop") -> Script:
    """Answer every request with a text, one byte per step, as far as max_tokens allows."""

    def script(request: EngineRequest) -> Iterable[RequestOutput]:
        ids = tokens_of(text)
        limit = request.sampling.max_tokens
        reason = finish_reason if len(ids) < limit else "length"
        for i, token_id in enumerate(ids[:limit]):
            is_last = i == min(len(ids), limit) - 1
            yield RequestOutput(
                request_id=request.request_id,
                token_ids=[token_id],
                finish_reason=reason if is_last else None,  # type: ignore[arg-type]
            )

    return script


def silence(request: EngineRequest) -> Iterable[RequestOutput]:
    """Answer nothing; the test sends outputs itself."""
    return ()


def make_ready(**changes: object) -> CoreReady:
    """Build what a small core says when it is loaded."""
    values = {
        "max_model_len": 256,
        "vocab_size": sim_vocab.VOCAB_SIZE,
        "num_blocks": 64,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "dtype": "float32",
        "load_seconds": 0.0,
    }
    return CoreReady(**(values | changes))  # type: ignore[arg-type]


def make_stats(**changes: int) -> CoreStats:
    """Build a core's figures."""
    values = {
        "num_running": 0,
        "num_waiting": 0,
        "num_free_blocks": 64,
        "num_total_blocks": 64,
        "num_steps": 0,
        "num_preemptions": 0,
        "prompt_tokens": 0,
        "generation_tokens": 0,
    }
    return CoreStats(**(values | changes))  # type: ignore[arg-type]


class FakeCore:
    """The other end of the server's socket."""

    def __init__(self, script: Script = silence) -> None:
        self.script = script
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.is_shut_down = False
        self._news = asyncio.Event()
        self._connection: AsyncFrameConnection[ApiFrame] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> AsyncFrameConnection[CoreFrame]:
        """Start to answer and return the server's end."""
        ours, theirs = socket_pair()
        self._connection = await AsyncFrameConnection.open(ours, ApiFrame)
        self._task = asyncio.create_task(self._serve(self._connection))
        return await AsyncFrameConnection.open(theirs, CoreFrame)

    async def send(self, *messages: CoreMessage) -> None:
        """Send one frame."""
        assert self._connection is not None
        await self._connection.send(CoreFrame(messages=list(messages)))

    async def die(self) -> None:
        """Close the socket as a killed process would."""
        assert self._connection is not None
        assert self._task is not None
        self._task.cancel()
        await self._connection.close()

    async def until(self, condition: Callable[[FakeCore], bool]) -> None:
        """Wait until what was received fulfils a condition."""
        while not condition(self):
            self._news.clear()
            await self._news.wait()

    async def _serve(self, connection: AsyncFrameConnection[ApiFrame]) -> None:
        with suppress(PeerGone):
            while True:
                frame = await connection.receive()
                for message in frame.messages:
                    if isinstance(message, EngineRequest):
                        self.requests.append(message)
                        for output in self.script(message):
                            await self.send(output)
                    elif isinstance(message, Shutdown):
                        self.is_shut_down = True
                    else:
                        self.aborted.append(message.request_id)
                self._news.set()
