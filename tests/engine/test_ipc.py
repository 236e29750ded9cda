from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import make_request
from tidemill_engine.errors import FrameTooLarge, PeerGone
from tidemill_engine.ipc import FrameConnection, FrameDecoder, encode_frame, socket_pair
from tidemill_engine.ipc_async import AsyncFrameConnection
from tidemill_engine.messages import AbortRequest, ApiFrame, CoreFrame, RequestOutput


def frame_of(*names: str) -> ApiFrame:
    return ApiFrame(messages=[AbortRequest(request_id=name) for name in names])


@given(st.lists(st.text(max_size=20), max_size=6), st.data())
def test_frames_survive_any_cutting_of_the_stream(names: list[str], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(frame_of(name)) for name in names)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder(ApiFrame)
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert received == [frame_of(name) for name in names]


def test_a_request_crosses_unchanged() -> None:
    request = make_request("a", seed=7, logit_bias={300: -1.5}, stop_token_ids=(1, 2), num_logprobs=3)
    (frame,) = FrameDecoder(ApiFrame).feed(encode_frame(ApiFrame(messages=[request])))
    assert frame.messages == [request]


def test_both_ends_talk_and_receive_does_not_wait_when_told_not_to() -> None:
    left, right = socket_pair()
    core, api = FrameConnection(left, ApiFrame), FrameConnection(right, CoreFrame)
    assert core.receive() == []
    api.send(frame_of("a"))
    api.send(frame_of("b", "c"))
    assert core.receive(5.0) == [frame_of("a"), frame_of("b", "c")]
    core.close()
    api.close()


def test_frames_sent_before_the_end_of_the_file_still_arrive() -> None:
    left, right = socket_pair()
    api = FrameConnection(left, ApiFrame)
    api.send(frame_of("last words"))
    api.close()
    core = FrameConnection(right, ApiFrame)
    assert core.receive(5.0) == [frame_of("last words")]
    with pytest.raises(PeerGone):
        core.receive(5.0)
    with pytest.raises(PeerGone):
        core.send(frame_of("a"))
    core.close()


def test_a_frame_over_the_bound_is_refused_on_both_sides() -> None:
    with pytest.raises(FrameTooLarge):
        encode_frame(frame_of("x" * 100), max_frame_bytes=50)
    with pytest.raises(FrameTooLarge):
        FrameDecoder(ApiFrame, max_frame_bytes=50).feed(encode_frame(frame_of("x" * 100)))


async def test_the_asyncio_side_speaks_the_same_frames() -> None:
    left, right = socket_pair()
    core = FrameConnection(left, ApiFrame)
    api = await AsyncFrameConnection.open(right, CoreFrame)
    await api.send(frame_of("a"))
    assert core.receive(5.0) == [frame_of("a")]
    output = CoreFrame(messages=[RequestOutput(request_id="a", token_ids=[1, 2], finish_reason="stop")])
    core.send(output)
    assert await api.receive() == output
    core.close()
    with pytest.raises(PeerGone):
        await api.receive()
    await api.close()


async def test_the_asyncio_side_refuses_a_frame_over_its_bound() -> None:
    left, right = socket_pair()
    api = await AsyncFrameConnection.open(right, CoreFrame, max_frame_bytes=16)
    left.sendall(encode_frame(frame_of("x" * 100)))
    with pytest.raises(FrameTooLarge):
        await api.receive()
    await api.close()
    left.close()


def test_a_reset_counts_as_the_end() -> None:
    left, right = socket.socketpair()
    connection = FrameConnection(left, ApiFrame)
    connection.send(frame_of("unread"))
    right.close()
    with pytest.raises(PeerGone):
        connection.receive(5.0)
    connection.close()
