"""Has the system back a cache's memory shortly before steps write it.

Knows the cache's arrays and the highest block that steps were given. Does not know what lies in blocks.

Memory is the system's until it is first written. What it then does for two megabytes takes some tenths of
a millisecond, and several in a virtual machine whose host must find the memory, too. In a step all threads
wait for that; here it is one thread of its own, a little after each step, since much at once would be felt.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tidemill_engine.step import IntArray

    CacheArray = npt.NDArray[np.uint16]

logger = logging.getLogger(__name__)

_MADV_POPULATE_WRITE = 23
"""Linux 5.14 and later, `madvise(2)`: contents stay as they are."""
_PIECE_BLOCKS = 16


class CacheBacking:
    """Keeps so many blocks backed ahead of those that steps were given, beside the steps."""

    def __init__(
        self,
        arrays: Sequence[CacheArray],
        *,
        ahead_blocks: int,
        populate: Callable[[CacheArray], bool] | None = None,
    ) -> None:
        """Back the first blocks at once; each of `arrays` is `[num_blocks, ...]`."""
        self._arrays = list(arrays)
        self._ahead = ahead_blocks
        self._populate = populate or populate_pages
        self._num_blocks = len(self._arrays[0])
        self._num_backed = 0
        self._thread: threading.Thread | None = None
        self._extend(min(ahead_blocks, self._num_blocks))

    @property
    def num_backed(self) -> int:
        """Return up to which block memory is backed, or needs no more of it."""
        return self._num_backed

    def note(self, block_ids: IntArray) -> None:
        """Take note of blocks that a step has written; go on behind the highest."""
        if len(block_ids) == 0 or (self._thread is not None and self._thread.is_alive()):
            return
        wanted = min(int(block_ids.max()) + 1 + self._ahead, self._num_blocks)
        if wanted > self._num_backed:
            thread = threading.Thread(target=self._extend, args=(wanted,), name="cache-backing", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the step is computed: it must not fail for want of a thread
                logger.info("%s: steps wait for the cache's memory", error)
                self._num_backed = self._num_blocks
                return
            self._thread = thread

    def _extend(self, until: int) -> None:
        """Back all blocks below `until`, a few at a time, of all arrays."""
        while self._num_backed < until:
            end = min(self._num_backed + _PIECE_BLOCKS, until)
            if not all(self._populate(array[self._num_backed : end]) for array in self._arrays):
                logger.info("the system backs no memory ahead of its use: steps wait for it")
                self._num_backed = self._num_blocks
                return
            self._num_backed = end


def populate_pages(part: CacheArray) -> bool:
    """Have the system back a part of an array, without changing it; False where it can't."""
    if sys.platform != "linux":
        return False
    first = part.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    size = part.ctypes.data + part.nbytes - first
    failed = _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)
    return bool(failed == 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    """Return the C library; making a handle takes longer than most calls that it is made for."""
    return ctypes.CDLL(None)
