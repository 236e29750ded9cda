from __future__ import annotations

import asyncio

from engine_builders import make_request
from fake_core import FakeCore
from tidemill_engine.api.core_client import CoreClient
from tidemill_engine.messages import RequestOutput, StepTokens
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


async def test_every_request_gets_a_handle_of_its_own() -> None:
    client = CoreClient(lambda _news: None)
    handles = [client.next_handle() for _ in range(100)]
    assert len(set(handles)) == 100
