"""The server's end of the socket to the core: requests out, outputs to whoever waits for them.

Knows frames and request ids. Does not know text, HTTP or how the core process is started; what is not an
output goes to a listener. When the peer is gone every open mailbox gets the error, none is forgotten.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from tidemill_engine.errors import EngineError, EngineUnavailable, Overloaded, PeerGone
from tidemill_engine.ipc_async import AsyncFrameConnection
from tidemill_engine.messages import (
    AbortRequest,
    ApiFrame,
    CoreFailed,
    CoreFrame,
    CoreMessage,
    CoreReady,
    CoreStats,
    EngineRequest,
    LoadProgress,
    RequestOutput,
    Shutdown,
    StepTokens,
)

logger = logging.getLogger(__name__)

MAX_GATHERING_SECONDS = 0.002
"""Messages gather for at most so long: reading a crowd may keep the event loop for ten times that."""

MAX_FRAME_TOKENS = 1_000_000
"""A frame holds no more prompt tokens, of five bytes at most, unless one request alone has more."""

CoreNews = CoreReady | LoadProgress | CoreFailed | CoreStats


class Mailbox:
    """Outputs for one HTTP request, all its sequences together, until it takes them."""

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._error: EngineError | None = None
        self._news = asyncio.Event()
        self.has_received = False

    def put(self, output: RequestOutput) -> None:
        """Add an output."""
        self.has_received = True
        self._outputs.append(output)
        self._news.set()

    def fail(self, error: EngineError) -> None:
        """Make the reader raise once it has taken what came before; the first error stays."""
        self._error = self._error or error
        self._news.set()

    async def take_all(self) -> list[RequestOutput]:
        """Wait for outputs and return all that have come: a slow reader gets many at once."""
        await self._news.wait()
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            if self._error is None:
                self._news.clear()
            return outputs
        if self._error is None:
            raise EngineUnavailable("the mailbox was woken without news")
        raise self._error


class CoreClient:
    """Relays requests to the core and its outputs back, with a bound on how many are in flight."""

    def __init__(
        self, listener: Callable[[CoreNews], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._connection: AsyncFrameConnection[CoreFrame] | None = None
        self._mailboxes: dict[str, Mailbox] = {}
        self._handles = itertools.count(1)
        self._ids: dict[int, str] = {}
        self._handle_of: dict[str, int] = {}
        self._outbox: list[EngineRequest | AbortRequest | Shutdown] = []
        self._gathering_since = 0.0
        self._has_mail = asyncio.Event()
        self._closed: EngineError | None = None

    @property
    def num_in_flight(self) -> int:
        """Count the sequences that the core still works on or will."""
        return len(self._mailboxes)

    def next_handle(self) -> int:
        """Return a number for one request that no other one has had."""
        return next(self._handles)

    def submit(self, requests: Sequence[EngineRequest], *, max_in_flight: int) -> Mailbox:
        """Queue all sequences of one HTTP request, or none of them when there are too many already."""
        if self._closed is not None:
            raise self._closed
        if len(self._mailboxes) + len(requests) > max_in_flight:
            logger.warning("refusing %d sequences: %d are in flight", len(requests), len(self._mailboxes))
            raise Overloaded(f"{len(self._mailboxes)} sequences are waiting or running; try again later")
        mailbox = Mailbox()
        for request in requests:
            self._mailboxes[request.request_id] = mailbox
            self._ids[request.handle] = request.request_id
            self._handle_of[request.request_id] = request.handle
        self._send(requests)
        return mailbox

    def forget(self, request_id: str) -> None:
        """Stop listening to a sequence that the core has ended."""
        self._close(request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End sequences in the core, wherever they are; those that have ended are left alone."""
        live = [request_id for request_id in request_ids if self._close(request_id)]
        if live and self._closed is None:
            self._send([AbortRequest(request_id=request_id) for request_id in live])

    def fail_unstarted(self, error: EngineError) -> None:
        """Give up on every HTTP request of which no token has come yet."""
        for mailbox in set(self._mailboxes.values()):
            if not mailbox.has_received:
                mailbox.fail(error)

    def fail_all(self, error: EngineError) -> None:
        """Give up on everything in flight."""
        for mailbox in set(self._mailboxes.values()):
            mailbox.fail(error)

    def shut_down(self) -> None:
        """Ask the core to finish its step and exit."""
        if self._closed is None:
            self._send([Shutdown()])

    async def run(self, connection: AsyncFrameConnection[CoreFrame]) -> None:
        """Relay until the core is gone; then fail what is open and return."""
        self._connection = connection
        sender = asyncio.create_task(self._send_all(connection))
        try:
            while True:
                frame = await connection.receive()
                for message in frame.messages:
                    self._dispatch(message)
        except (EngineError, msgspec.MsgspecError) as error:
            if not isinstance(error, PeerGone):
                logger.error("the core sent what can't be read: %s", error)  # noqa: TRY400 - no trace needed
            self._closed = EngineUnavailable(
                "the engine core has died; this engine is restarting", code="engine_died"
            )
            logger.info("the core has closed its socket with %d sequences in flight", len(self._mailboxes))
            self.fail_all(self._closed)
        finally:
            sender.cancel()
            await connection.close()

    def _dispatch(self, message: CoreMessage) -> None:
        if isinstance(message, StepTokens):
            for handle, token_id in message.pairs():
                request_id = self._ids.get(handle)
                if request_id is not None:  # else aborted meanwhile
                    output = RequestOutput(request_id=request_id, token_ids=[token_id])
                    self._mailboxes[request_id].put(output)
        elif isinstance(message, RequestOutput):
            mailbox = self._mailboxes.get(message.request_id)
            if mailbox is None:
                return
            mailbox.put(message)
            if message.finish_reason is not None:
                self._close(message.request_id)
        else:
            self._listener(message)

    def _close(self, request_id: str) -> bool:
        """Stop listening to a sequence; say whether anyone did."""
        handle = self._handle_of.pop(request_id, None)
        if handle is not None:
            del self._ids[handle]
        return self._mailboxes.pop(request_id, None) is not None

    def _send(self, messages: Sequence[EngineRequest | AbortRequest | Shutdown]) -> None:
        """Let messages gather until the sender's turn; what has gathered for long goes at once."""
        now = self._clock()
        if not self._outbox:
            self._gathering_since = now
        self._outbox += messages
        is_old = now - self._gathering_since >= MAX_GATHERING_SECONDS
        if is_old and self._connection is not None and self._closed is None:
            with suppress(PeerGone):  # the receiving side sees it too and fails the mailboxes
                while self._outbox:
                    self._connection.post(self._take_frame())
        else:
            self._has_mail.set()

    def _take_frame(self) -> ApiFrame:
        """Take as many messages as surely fit into one frame, one at least."""
        num_tokens = 0
        for count, message in enumerate(self._outbox):
            num_tokens += len(message.prompt_token_ids) if isinstance(message, EngineRequest) else 0
            if count and num_tokens > MAX_FRAME_TOKENS:
                break
        else:
            count = len(self._outbox)
        messages, self._outbox = self._outbox[:count], self._outbox[count:]
        return ApiFrame(messages=messages)

    async def _send_all(self, connection: AsyncFrameConnection[CoreFrame]) -> None:
        """Write what has gathered, one frame at a time; everything that came meanwhile goes together."""
        try:
            while True:
                await self._has_mail.wait()
                self._has_mail.clear()
                while self._outbox:
                    await connection.send(self._take_frame())
        except PeerGone:
            return  # the receiving side sees it too and ends the streams
