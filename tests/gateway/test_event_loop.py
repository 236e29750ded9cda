"""The loop that the gateway runs on: uvloop where it is installed, else asyncio's own."""

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest

from tidemill_gateway import event_loop


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
