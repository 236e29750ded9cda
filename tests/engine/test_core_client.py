from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from engine_builders import make_request
from fake_core import FakeCore
from tidemill_engine.api.core_client import MAX_FRAME_TOKENS, CoreClient
from tidemill_engine.errors import PeerGone
from tidemill_engine.messages import ApiFrame, CoreFrame, RequestOutput, Shutdown, StepTokens
from tidemill_engine.step import int_array


def columns(*pairs: tuple[int, int]) -> StepTokens:
    handles, tokens = zip(*pairs, strict=True)
    return StepTokens(
        handles=int_array(handles).astype("int64").tobytes(), token_ids=int_array(tokens).tobytes()
    )


async def test_columns_reach_the_mailboxes_of_their_requests_in_order_and_others_are_left_out() -> None:
    client, core = CoreClient(lambda _news: None), FakeCore()
    running = asyncio.create_task(client.run(await core.start()))
    requests = [make_request(name) for name in "abc"]
    first, second, gone = (client.submit([request], max_in_flight=9) for request in requests)
    a, b, c = (request.handle for request in requests)
    client.abort(["c"])
    await core.send(columns((a, 10), (c, 11), (b, 12), (a, 13), (987654, 14)))
    await core.send(RequestOutput(request_id="a", token_ids=[15], finish_reason="length"))
    outputs: list[RequestOutput] = []
    while not outputs or outputs[-1].finish_reason is None:
        outputs += await first.take_all()
    assert [output.token_ids for output in outputs] == [[10], [13], [15]]
    assert [output.token_ids for output in await second.take_all()] == [[12]]
    assert not gone.has_received
    assert client.num_in_flight == 1
    await core.die()
    await running


@dataclass(kw_only=True)
class FrameLog:
    """Stands where the socket is: frames as they are written, and a core that says nothing."""

    frames: list[list[str]] = field(default_factory=list)
    is_gone: bool = False

    def post(self, frame: ApiFrame) -> None:
        if self.is_gone:
            raise PeerGone("gone")
        self.frames.append(
            [message.request_id for message in frame.messages if not isinstance(message, Shutdown)]
        )

    async def send(self, frame: ApiFrame) -> None:
        self.post(frame)

    async def receive(self) -> CoreFrame:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Do nothing."""


async def test_what_a_busy_event_loop_keeps_back_for_long_is_sent_at_once() -> None:
    now = [0.0]
    client, log = CoreClient(lambda _news: None, lambda: now[0]), FrameLog()
    running = asyncio.create_task(client.run(log))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    sent = []
    for index, name in enumerate("abcdef"):
        now[0] = 0.0015 * index
        client.submit([make_request(name)], max_in_flight=9)
        sent.append(len(log.frames))
    assert log.frames == [["a", "b", "c"], ["d", "e", "f"]], "no turn of the sender came between"
    assert sent == [0, 0, 1, 1, 1, 2]
    now[0] = 1.0
    client.submit([make_request("g")], max_in_flight=9)
    assert len(log.frames) == 2, "one alone leaves its turn to those that come with it"
    for _ in range(3):
        await asyncio.sleep(0)
    assert log.frames[2:] == [["g"]]
    log.is_gone = True
    client.submit([make_request("h")], max_in_flight=9)
    now[0] = 2.0
    client.submit([make_request("i")], max_in_flight=9)
    running.cancel()


async def test_many_long_prompts_go_in_frames_that_are_within_their_bound() -> None:
    now = [0.0]
    client, log = CoreClient(lambda _news: None, lambda: now[0]), FrameLog()
    running = asyncio.create_task(client.run(log))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    prompt = [100_000] * (MAX_FRAME_TOKENS * 2 // 5)
    crowd = [make_request(name, prompt=prompt) for name in "abcde"]
    client.submit(crowd, max_in_flight=9)
    for _ in range(3):
        await asyncio.sleep(0)
    assert log.frames == [["a", "b"], ["c", "d"], ["e"]]
    client.submit([make_request("huge", prompt=prompt * 3)], max_in_flight=9)
    now[0] = 1.0
    client.submit([make_request("late")], max_in_flight=9)
    assert log.frames[3:] == [["huge"], ["late"]], "one alone goes whatever it has"
    running.cancel()


async def test_every_request_gets_a_handle_of_its_own() -> None:
    client = CoreClient(lambda _news: None)
    handles = [client.next_handle() for _ in range(100)]
    assert len(set(handles)) == 100
