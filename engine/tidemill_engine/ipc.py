"""Length-prefixed msgspec frames over a stream socket, blocking side.

Knows bytes and framing: a 4-byte little-endian length, then msgpack. Does not know what the messages mean,
and has no event loop (`ipc_async` is the other side). End of file means that the peer is dead.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from tidemill_engine.errors import FrameTooLarge, PeerGone

MAX_FRAME_BYTES = 64 * 1024 * 1024
HEADER = struct.Struct("<I")
_RECEIVE_BYTES = 1 << 18

ReceivedT = TypeVar("ReceivedT")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected AF_UNIX stream sockets, one for each process."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def encode_frame(frame: object, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return the bytes of one frame, header included."""
    body = msgspec.msgpack.encode(frame)
    if len(body) > max_frame_bytes:
        raise FrameTooLarge(f"a frame of {len(body)} bytes is over the bound of {max_frame_bytes} bytes")
    return HEADER.pack(len(body)) + body


def frame_length(header: bytes, max_frame_bytes: int = MAX_FRAME_BYTES) -> int:
    """Return the body length that a header announces."""
    length: int = HEADER.unpack(header)[0]
    if length > max_frame_bytes:
        raise FrameTooLarge(f"the peer announces {length} bytes, over the bound of {max_frame_bytes} bytes")
    return length


class FrameDecoder(Generic[ReceivedT]):
    """Turns a stream of bytes, cut anywhere, into whole frames of one type."""

    def __init__(self, frame_type: type[ReceivedT], max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder = msgspec.msgpack.Decoder(frame_type)
        self._max_frame_bytes = max_frame_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[ReceivedT]:
        """Take more bytes and return the frames that they complete."""
        self._pending += data
        frames: list[ReceivedT] = []
        start = 0
        while len(self._pending) - start >= HEADER.size:
            body_start = start + HEADER.size
            length = frame_length(bytes(self._pending[start:body_start]), self._max_frame_bytes)
            if len(self._pending) < body_start + length:
                break
            frames.append(self._decoder.decode(bytes(self._pending[body_start : body_start + length])))
            start = body_start + length
        if start:
            del self._pending[:start]
        return frames


class FrameConnection(Generic[ReceivedT]):
    """One end of the socket for a process that may block: `send` blocks, `receive` drains what has come.

    Any thread may send; one receives.
    """

    def __init__(
        self,
        sock: socket.socket,
        receives: type[ReceivedT],
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._sending = threading.Lock()
        self._max_frame_bytes = max_frame_bytes
        self._frames = FrameDecoder(receives, max_frame_bytes)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, frame: object) -> None:
        """Write one frame whole, waiting while the peer's buffer is full."""
        data = encode_frame(frame, self._max_frame_bytes)
        try:
            with self._sending:
                self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PeerGone("the other process has closed the socket") from error

    def receive(self, timeout_seconds: float = 0.0) -> list[ReceivedT]:
        """Return every frame that has arrived, waiting up to the timeout for the first bytes.

        The end of the file raises only once all frames before it have been returned.
        """
        frames: list[ReceivedT] = []
        timeout = timeout_seconds
        while self._poll.poll(timeout * 1000):
            data = self._read()
            if not data:
                if frames:
                    return frames
                raise PeerGone("the other process has closed the socket")
            frames += self._frames.feed(data)
            timeout = 0.0
        return frames

    def _read(self) -> bytes:
        """Return some bytes, or none at the end of the file."""
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        """Close the socket, so that the peer sees the end of the file."""
        self._sock.close()
