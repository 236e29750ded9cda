"""Renders conversations with the model's chat template in a process of its own, within two seconds each.

Knows how to start, bound and replace that process. Does not know jinja2: a template that loops or grows is
killed there and costs its own request only.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from tidemill_engine.api.protocol import ChatMessage
from tidemill_engine.api.template_messages import RenderRequest, RenderResult, TemplateSource
from tidemill_engine.errors import InvalidRequest, PeerGone
from tidemill_engine.ipc import socket_pair
from tidemill_engine.ipc_async import AsyncFrameConnection
from tidemill_engine.tokenizer import ModelTokenizer

logger = logging.getLogger(__name__)

RENDER_SECONDS = 2.0
START_SECONDS = 30.0


class ChatTemplate:
    """One model's template; renders one conversation at a time."""

    def __init__(self, tokenizer: ModelTokenizer, *, render_seconds: float = RENDER_SECONDS) -> None:
        self._source = tokenizer.chat_template
        self._bos_token = tokenizer.special_token_text(tokenizer.bos_token_id)
        self._eos_token = tokenizer.special_token_text(tokenizer.eos_token_id)
        self._render_seconds = render_seconds
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._connection: AsyncFrameConnection[RenderResult] | None = None

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        """Return the prompt for the assistant's next turn, or raise where the template fails."""
        request = RenderRequest(
            messages=[{"role": message.role, "content": message.content} for message in messages],
            bos_token=self._bos_token,
            eos_token=self._eos_token,
        )
        async with self._lock:
            try:
                result = await self._ask(request)
            except BaseException:  # cancelled in between, the next answer would be this one's
                await self.close()
                raise
        if result.error is not None:
            raise InvalidRequest(result.error, param="messages", code="chat_template_failed")
        return result.text

    async def start(self) -> None:
        """Start the process before the first request needs it; a template that is invalid shows on use."""
        if self._source is None:
            return
        async with self._lock:
            try:
                await self._connect(self._source)
            except InvalidRequest as error:
                logger.warning("chat completions will be refused: %s", error.message)

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _ask(self, request: RenderRequest) -> RenderResult:
        if self._source is None:
            raise InvalidRequest(
                "this model has no chat template: use /v1/completions with a prompt instead",
                param="messages",
                code="no_chat_template",
            )
        connection = self._connection or await self._connect(self._source)
        try:
            async with asyncio.timeout(self._render_seconds):
                await connection.send(request)
                return await connection.receive()
        except TimeoutError:
            logger.warning("killing the template process: no answer within %.1f s", self._render_seconds)
            reason = f"the chat template took longer than {self._render_seconds:g} s for these messages"
        except PeerGone:
            logger.warning("the template process died while rendering")
            reason = "the chat template needs too much memory for these messages"
        await self.close()
        return RenderResult(error=reason)

    async def _connect(self, source: str) -> AsyncFrameConnection[RenderResult]:
        ours, theirs = socket_pair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tidemill_engine.api.template_worker",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        connection = await AsyncFrameConnection.open(ours, RenderResult)
        async with asyncio.timeout(START_SECONDS):
            await connection.send(TemplateSource(source=source))
            result = await connection.receive()
        if result.error is not None:
            await connection.close()
            raise InvalidRequest(result.error, param="messages", code="chat_template_failed")
        self._connection = connection
        return connection
