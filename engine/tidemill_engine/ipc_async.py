"""Length-prefixed msgspec frames over a stream socket, asyncio side, for the API process.

Knows framing only, as `ipc` does; end of file raises `PeerGone`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from tidemill_engine.errors import PeerGone
from tidemill_engine.ipc import HEADER, MAX_FRAME_BYTES, encode_frame, frame_length

if TYPE_CHECKING:
    import socket

ReceivedT = TypeVar("ReceivedT")


class AsyncFrameConnection(Generic[ReceivedT]):
    """One end of the socket for an event loop. One task may receive; `send` may be called from many."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receives: type[ReceivedT],
        max_frame_bytes: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._max_frame_bytes = max_frame_bytes

    @classmethod
    async def open(
        cls,
        sock: socket.socket,
        receives: type[ReceivedT],
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> AsyncFrameConnection[ReceivedT]:
        """Take over a connected socket; the connection closes it."""
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, receives, max_frame_bytes)

    async def send(self, frame: object) -> None:
        """Write one frame whole, then wait while the peer is slow."""
        data = encode_frame(frame, self._max_frame_bytes)
        if self._writer.is_closing():
            raise PeerGone("the socket is closed")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PeerGone("the other process has closed the socket") from error

    def post(self, frame: object) -> None:
        """Write one frame whole without waiting; what a slow peer does not take is kept."""
        if self._writer.is_closing():
            raise PeerGone("the socket is closed")
        self._writer.write(encode_frame(frame, self._max_frame_bytes))

    async def receive(self) -> ReceivedT:
        """Wait for the next frame."""
        try:
            header = await self._reader.readexactly(HEADER.size)
            body = await self._reader.readexactly(frame_length(header, self._max_frame_bytes))
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            raise PeerGone("the other process has closed the socket") from error
        return self._decoder.decode(body)

    async def close(self) -> None:
        """Close the socket, so that the peer sees the end of the file."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except (BrokenPipeError, ConnectionResetError):
            return
