"""The life of the API process: listen, start the core, load the tokenizer, serve, drain, end.

Knows the order of these and which exit code each ending has. The parts themselves live elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from aiohttp import web

from tidemill_engine.api.admin import make_admin_app
from tidemill_engine.api.app import make_api_app
from tidemill_engine.api.chat_template import ChatTemplate
from tidemill_engine.api.config import ServeConfig
from tidemill_engine.api.context import ApiContext
from tidemill_engine.api.state import Drain, Phase
from tidemill_engine.api.supervisor import CoreProcess
from tidemill_engine.api.termination import (
    DRAIN_TIMEOUT_REASON,
    EXIT_CLEAN,
    EXIT_CORE_DIED,
    EXIT_LOAD_FAILED,
    EXIT_USAGE,
    Ending,
)
from tidemill_engine.errors import EngineUnavailable, ModelLoadError
from tidemill_engine.model_uri import parse_model_uri
from tidemill_engine.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
FLUSH_SECONDS = 2.0
"""How long open streams get to send their error event once the core is gone."""


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where the servers are reached, once they are."""

    api_port: int
    admin_port: int
    core_pid: int


class Server:
    """One run of `tidemill-engine serve`."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_listening: Callable[[Listening], None] | None = None,
        on_ready: Callable[[Listening], None] | None = None,
    ) -> None:
        self.context = ApiContext(config, clock=clock)
        self._config = config
        self._on_listening = on_listening
        self._on_ready = on_ready
        self._listening: Listening | None = None
        self._stop = asyncio.Event()
        self._is_hurried = False

    def stop(self, reason: str, *, is_hurried: bool = False) -> None:
        """Begin to end: drain first, or let go of everything at once when hurried (by Ctrl-C)."""
        logger.info("stopping: %s", reason)
        self._is_hurried = self._is_hurried or is_hurried
        self.context.drain.start(reason, is_final=True)
        self._stop.set()

    async def run(self) -> Ending:
        """Serve until told to stop or until the engine can't go on."""
        async with AsyncExitStack() as stack:
            try:
                ports = await self._listen(stack)
            except OSError as error:
                return Ending(exit_code=EXIT_USAGE, reason="CannotListen", message=str(error))
            core = await CoreProcess.start(self._config.core)
            stack.push_async_callback(core.end, 0.0)
            self.context.heartbeat = core.heartbeat
            os.nice(self._config.niceness)
            relay = asyncio.create_task(self.context.client.run(core.connection))
            loading = asyncio.create_task(self._load_text(stack))
            api_port, admin_port = ports
            self._listening = Listening(api_port=api_port, admin_port=admin_port, core_pid=core.pid)
            if self._on_listening is not None:
                self._on_listening(self._listening)
            ending = await self._until_the_end(core, relay)
            loading.cancel()
            await asyncio.gather(relay, loading, return_exceptions=True)
            return ending

    async def _listen(self, stack: AsyncExitStack) -> tuple[int, int]:
        """Open both ports before anything is loaded, so that probes have an answer from the start."""
        http, admin = self._config.http, self._config.admin
        api_port = await _start_site(stack, make_api_app(self.context), http.host, http.port)
        admin_port = await _start_site(stack, make_admin_app(self.context), admin.host, admin.port)
        return api_port, admin_port

    async def _load_text(self, stack: AsyncExitStack) -> None:
        """Load the tokenizer and start the template process, beside the core's loading."""
        try:
            uri = parse_model_uri(self._config.core.model.uri)
            tokenizer = await asyncio.to_thread(load_tokenizer, uri)
        except ModelLoadError as error:
            self.context.fail(error.reason, error.message)
            return
        except Exception as error:
            logger.exception("the tokenizer can't be loaded")
            self.context.fail("ModelLoadFailed", f"the tokenizer can't be loaded: {error}")
            return
        template = ChatTemplate(tokenizer)
        stack.push_async_callback(template.close)
        await template.start()
        self.context.on_tokenizer(tokenizer, template)

    async def _until_the_end(self, core: CoreProcess, relay: asyncio.Task[None]) -> Ending:
        """Wait for readiness, then for a reason to end."""
        was_ready = False
        while not (relay.done() or self._stop.is_set() or self.context.state.phase is Phase.FAILED):
            await self._wait_for_news(relay)
            if self.context.state.phase is Phase.READY and not was_ready:
                was_ready = True
                self._announce()
        if relay.done() and relay.exception() is not None:
            logger.error("the relay to the core failed inside", exc_info=relay.exception())
        if self._stop.is_set():
            return await self._finish(core, relay, was_ready=was_ready)
        return await self._fail(core, was_ready=was_ready)

    async def _wait_for_news(self, relay: asyncio.Task[None]) -> None:
        self.context.news.clear()
        waits = [asyncio.create_task(event.wait()) for event in (self.context.news, self._stop)]
        await asyncio.wait([relay, *waits], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _announce(self) -> None:
        ready = self.context.state.ready
        if ready is not None:
            logger.info(
                "ready after %.1f s: %s, context %d tokens, %d KV blocks of %d tokens, %s",
                ready.load_seconds,
                ", ".join(self.context.served_names()),
                ready.max_model_len,
                ready.num_blocks,
                ready.block_size,
                ready.dtype,
            )
        if self._on_ready is not None and self._listening is not None:
            self._on_ready(self._listening)

    async def _finish(self, core: CoreProcess, relay: asyncio.Task[None], *, was_ready: bool) -> Ending:
        """Drain, then end the core; a core that dies or hangs meanwhile ends it sooner."""
        context = self.context
        loop = asyncio.get_running_loop()
        deadline = context.drain.deadline or 0.0
        while was_ready and not self._is_hurried and loop.time() < deadline:
            if context.state.drain is Drain.REFUSING and context.requests.num == 0:
                break
            if relay.done() or not context.liveness().is_ok:
                return await self._fail(core, was_ready=True)
            await asyncio.sleep(POLL_SECONDS)
        num_cut = context.requests.num
        if num_cut:
            logger.warning("ending with %d requests unfinished", num_cut)
            context.client.fail_all(EngineUnavailable("the engine is shutting down", code="shutting_down"))
            await self._flush()
        context.client.shut_down()
        how = await core.end(seconds=5.0 if was_ready else 1.0)
        logger.info("the core has ended: %s", how)
        if num_cut and not self._is_hurried:
            message = f"{num_cut} requests had not ended when the drain timeout was over, and were cut"
            return Ending(exit_code=EXIT_CLEAN, reason=DRAIN_TIMEOUT_REASON, message=message)
        return Ending(exit_code=EXIT_CLEAN)

    async def _fail(self, core: CoreProcess, *, was_ready: bool) -> Ending:
        """End because the core is gone or the model can't be loaded; every open stream hears of it first."""
        context = self.context
        reported = context.failure_reason
        how = await core.end(seconds=1.0)
        reason = reported or "CoreDied"
        message = context.state.failure or f"the engine core has ended unexpectedly: {how}"
        context.fail(reason, message)
        logger.error("%s: %s", reason, message)
        context.client.fail_all(EngineUnavailable(message, code="engine_died"))
        await self._flush()
        is_load_failure = reported is not None and not was_ready
        exit_code = EXIT_LOAD_FAILED if is_load_failure else EXIT_CORE_DIED
        return Ending(exit_code=exit_code, reason=reason, message=message)

    async def _flush(self) -> None:
        """Let handlers write their last event."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.context.requests.wait_idle()


async def _start_site(stack: AsyncExitStack, app: web.Application, host: str, port: int) -> int:
    """Listen on one address and return the port, which the system chooses for 0."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port, backlog=1024).start()
    actual: int = runner.addresses[0][1]
    logger.info("listening on http://%s:%d", host, actual)
    return actual


async def serve(config: ServeConfig, on_ready: Callable[[Listening], None] | None = None) -> Ending:
    """Run a server that drains on SIGTERM and stops at once on SIGINT."""
    server = Server(config, on_ready=on_ready)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: server.stop("SIGTERM"))
    loop.add_signal_handler(signal.SIGINT, lambda: server.stop("SIGINT", is_hurried=True))
    return await server.run()
