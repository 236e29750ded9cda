"""An API process without subprocesses: the real application on a real port, in front of a fake core."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientResponse, ClientSession, web

from fake_core import FakeCore, Script, make_ready, silence, tokens_of
from tidemill_engine.api.admin import make_admin_app
from tidemill_engine.api.app import make_api_app
from tidemill_engine.api.chat_template import ChatTemplate
from tidemill_engine.api.config import ServeConfig
from tidemill_engine.api.context import ApiContext
from tidemill_engine.config import CoreConfig, ModelConfig
from tidemill_engine.messages import CoreReady, FinishReason, RequestOutput
from tidemill_engine.tokenizer import ModelTokenizer
from tidemill_engine.tokenizer.sources import tokenizer_for_sim


def make_serve_config(**changes: Any) -> ServeConfig:
    """Build a server's configuration for the sim model."""
    values: dict[str, Any] = {
        "core": CoreConfig(model=ModelConfig(uri="sim://test")),
        "served_model_names": ("test", "alias"),
    }
    return ServeConfig(**(values | changes))


@dataclass(frozen=True, kw_only=True)
class Api:
    """A running server and how to reach it."""

    context: ApiContext
    core: FakeCore
    session: ClientSession
    url: str
    admin_url: str

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """Send JSON and return status and JSON."""
        async with self.session.post(self.url + path, json=body, **options) as response:
            return response.status, await response.json()

    async def complete(self, **body: Any) -> tuple[int, Any]:
        """Ask for a completion."""
        return await self.post("/v1/completions", {"model": "test"} | body)

    async def chat(self, **body: Any) -> tuple[int, Any]:
        """Ask for a chat completion."""
        messages = [{"role": "user", "content": "hi"}]
        return await self.post("/v1/chat/completions", {"model": "test", "messages": messages} | body)

    async def stream(self, path: str, **body: Any) -> list[Any]:
        """Ask for a stream and return the decoded payloads of its events, the closing [DONE] as that text."""
        body = {"model": "test", "stream": True} | body
        async with self.session.post(self.url + path, json=body) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            return parse_events(await response.read())

    def open_stream(self, **body: Any) -> asyncio.Task[ClientResponse]:
        """Ask for a streamed completion; the headers come with the first token."""
        body = {"model": "test", "stream": True} | body
        return asyncio.create_task(self.session.post(self.url + "/v1/completions", json=body))

    async def send_tokens(self, index: int, text: str, finish_reason: FinishReason | None = None) -> None:
        """Let the core answer its request of this index with a text's tokens."""
        await self.core.until(lambda core: len(core.requests) > index)
        request_id = self.core.requests[index].request_id
        await self.core.send(
            RequestOutput(request_id=request_id, token_ids=tokens_of(text), finish_reason=finish_reason)
        )

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        """Get JSON from the API."""
        async with self.session.get(self.url + path, **options) as response:
            return response.status, await response.json()


def is_openai_error(body: Any) -> bool:
    """Say whether a body is OpenAI's error object, no more and no less."""
    return set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}


def parse_events(data: bytes) -> list[Any]:
    """Decode a whole event stream, insisting on its exact framing."""
    assert data.endswith(b"\n\n")
    events = data.removesuffix(b"\n\n").split(b"\n\n")
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    payloads = [event.removeprefix(b"data: ") for event in events]
    return ["[DONE]" if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


async def _listen(app: web.Application) -> tuple[web.AppRunner, str]:
    """Listen with a small send buffer, which connections inherit, so that slow clients show soon."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    await web.SockSite(runner, listener).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@asynccontextmanager
async def running_api(
    script: Script = silence,
    *,
    config: ServeConfig | None = None,
    ready: CoreReady | None = None,
    chat_template: str | None = "",
    adds_bos: bool = False,
    clock: Callable[[], float] | None = None,
) -> AsyncIterator[Api]:
    """Run the server; `chat_template` "" keeps the sim model's own."""
    options = {} if clock is None else {"clock": clock}
    context = ApiContext(config or make_serve_config(), **options)
    core = FakeCore(script)
    relay = asyncio.create_task(context.client.run(await core.start()))
    tokenizer = dataclasses.replace(tokenizer_for_sim(), adds_bos=adds_bos)
    if chat_template != "":
        tokenizer = dataclasses.replace(tokenizer, chat_template=chat_template)
    template = ChatTemplate(tokenizer)
    await make_loaded(context, core, tokenizer, template, ready)
    api_runner, url = await _listen(make_api_app(context))
    admin_runner, admin_url = await _listen(make_admin_app(context))
    try:
        async with ClientSession() as session:
            yield Api(context=context, core=core, session=session, url=url, admin_url=admin_url)
    finally:
        await api_runner.cleanup()
        await admin_runner.cleanup()
        await template.close()
        relay.cancel()
        await core.die()
        with suppress(asyncio.CancelledError):
            await relay


async def make_loaded(
    context: ApiContext,
    core: FakeCore,
    tokenizer: ModelTokenizer,
    template: ChatTemplate,
    ready: CoreReady | None,
) -> None:
    """Let the core say that it is ready and wait until the server knows."""
    context.on_tokenizer(tokenizer, template)
    await core.send(ready or make_ready())
    await context.news.wait()


async def read_event(response: ClientResponse) -> Any:
    """Read one event of an open stream."""
    line = await response.content.readuntil(b"\n\n")
    return parse_events(line)[0]
