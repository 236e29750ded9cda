"""Memory of the cache that the system backs before steps write it."""

from __future__ import annotations

import mmap
import resource
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tidemill_engine.runner.backing import CacheBacking, populate_pages
from tidemill_engine.step import int_array

if TYPE_CHECKING:
    from tidemill_engine.runner.backing import CacheArray


class Populated:
    """Notes which blocks of an array `[num_blocks, 1]` of their own numbers were asked for."""

    def __init__(self, *, works: bool = True) -> None:
        self._works = works
        self.blocks: list[int] = []

    def __call__(self, part: CacheArray) -> bool:
        self.blocks += part[:, 0].tolist()
        return self._works


def numbered(num_blocks: int) -> CacheArray:
    return np.arange(num_blocks, dtype=np.uint16).reshape(-1, 1)


def note(backing: CacheBacking, *block_ids: int) -> None:
    """Tell of blocks, and wait until what follows from it is done."""
    backing.note(int_array(block_ids))
    if backing._thread is not None:
        backing._thread.join()


def test_blocks_are_backed_once_each_and_ahead_of_the_highest_that_was_given() -> None:
    populated = Populated()
    backing = CacheBacking([numbered(200)], ahead_blocks=40, populate=populated)
    assert populated.blocks == list(range(40)), "the first are there before any step"
    note(backing, 3, 20, 7)
    assert populated.blocks == list(range(61))
    note(backing, 5)
    note(backing)
    assert populated.blocks == list(range(61)), "nothing new was given"
    note(backing, 199)
    assert populated.blocks == list(range(200))
    assert backing.num_backed == 200


def test_blocks_that_were_given_before_start_no_thread() -> None:
    backing = CacheBacking([numbered(200)], ahead_blocks=40, populate=Populated())
    note(backing, 8)
    started = backing._thread
    for block_ids in ([8], [], [2, 5]):
        backing.note(int_array(block_ids))
    assert backing._thread is started


def test_all_layers_have_a_block_before_any_has_the_ones_far_behind() -> None:
    populated = Populated()
    CacheBacking([numbered(100), 1000 + numbered(100)], ahead_blocks=100, populate=populated)
    assert populated.blocks.index(1000) < populated.blocks.index(99)


def test_a_step_does_not_fail_where_no_thread_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    populated = Populated()
    backing = CacheBacking([numbered(200)], ahead_blocks=40, populate=populated)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    backing.note(int_array([20]))
    backing.note(int_array([150]))
    assert populated.blocks == list(range(40))
    assert backing.num_backed == 200, "nobody tries again"


def test_a_system_that_does_not_know_how_is_asked_once() -> None:
    populated = Populated(works=False)
    backing = CacheBacking([numbered(200)], ahead_blocks=40, populate=populated)
    num_asked = len(populated.blocks)
    note(backing, 150)
    assert len(populated.blocks) == num_asked


@pytest.mark.skipif(sys.platform != "linux", reason="madvise knows it on Linux only")
def test_a_backed_part_keeps_what_it_holds_and_is_written_without_faults() -> None:
    num_pages = 512
    memory = mmap.mmap(-1, num_pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, dtype=np.uint16).reshape(num_pages, -1)
    array[5, 3] = 7
    if not populate_pages(array):
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    assert array[5, 3] == 7
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array[:, 0] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < num_pages // 2
