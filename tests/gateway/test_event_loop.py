"""The loop that the gateway runs on: uvloop where it is installed, else asyncio's own."""

import asyncio
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from gateway.test_process import config
from tidemill_gateway import event_loop, process


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


async def name_of_loop() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


def test_a_program_runs_on_uvloop_where_there_is_one() -> None:
    pytest.importorskip("uvloop")
    assert event_loop.run(name_of_loop()) == "uvloop"


def test_a_program_runs_on_asyncios_own_loop_where_uvloop_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop.run(name_of_loop()).startswith("asyncio")


@pytest.mark.parametrize(
    "name",
    [
        "test_the_first_chunk_arrives_before_the_replica_has_written_the_second",
        "test_a_client_that_leaves_cancels_the_replicas_request",
        "test_a_client_that_leaves_before_the_first_byte_cancels_the_replicas_request",
        "test_a_stream_that_breaks_ends_with_an_error_event_and_is_not_tried_again",
        "test_a_client_that_does_not_read_is_let_go_and_the_replica_with_it",
    ],
)
def test_streams_pass_unbuffered_and_end_with_their_client_on_uvloop_too(name: str) -> None:
    pytest.importorskip("uvloop")
    of_the_proxy = importlib.import_module("gateway.test_proxy")
    event_loop.run(getattr(of_the_proxy, name)())


def test_the_end_is_as_graceful_on_uvloop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvloop")
    of_the_process = importlib.import_module("gateway.test_process")
    event_loop.run(of_the_process.test_at_the_end_readiness_fails_first_and_streams_finish(monkeypatch))
    event_loop.run(of_the_process.test_streams_that_do_not_finish_in_time_are_cut())


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_begins_the_end_on_uvloop_too(
    signum: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvloop")

    class Api:
        async def close(self) -> None:
            pass

    async def connect() -> Api:
        return Api()

    async def serve(_config: object, _api: object, stopping: asyncio.Event) -> None:
        os.kill(os.getpid(), signum)
        await asyncio.wait_for(stopping.wait(), 30)

    monkeypatch.setattr(process, "connect", connect)
    monkeypatch.setattr(process, "serve", serve)
    assert event_loop.run(process.run(config())) == 0
