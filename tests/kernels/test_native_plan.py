"""How the attention of decodes is cut into pieces for threads, and that pieces give what the whole gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from native_paths import each_path, library_of
from native_rig import SHAPE, Rig, tokens_of
from tidemill_kernels.native.cpu import KernelPath, supported_paths

HEADS = 3
LEAST_SPLIT = 256
"""A context of so few tokens is never cut."""


def pieces_of(lengths: list[int], threads: int) -> list[int]:
    """Return each piece's tokens times heads, in the order of the plan."""
    library = library_of(supported_paths()[0])
    contexts, work = np.array(lengths, dtype=np.int32), np.zeros(4096, dtype=np.int64)
    count = library.tm_plan_decodes(
        contexts.ctypes.data, len(lengths), HEADS, threads, work.ctypes.data, len(work)
    )
    found: list[int] = work[:count].tolist()
    return found


def contexts_from_10_to_5000(count: int, seed: int) -> list[int]:
    generator = np.random.default_rng(seed)
    found: list[int] = np.exp(generator.uniform(np.log(10), np.log(5000), count)).astype(int).tolist()
    return found


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
def test_alike_decodes_are_a_piece_each_in_their_order(threads: int) -> None:
    assert pieces_of([160] * 64, threads) == [160 * HEADS] * 64


@pytest.mark.parametrize("threads", [2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(5))
def test_no_piece_is_more_than_a_share_of_the_work(threads: int, seed: int) -> None:
    lengths = contexts_from_10_to_5000(48, seed)
    pieces = pieces_of(lengths, threads)
    total = sum(lengths) * HEADS
    assert sum(pieces) == total
    assert max(pieces) <= max(LEAST_SPLIT * HEADS, total / (4 * threads) + HEADS)


@pytest.mark.parametrize("threads", [2, 5])
def test_each_thread_begins_with_its_largest_pieces(threads: int) -> None:
    pieces = pieces_of(contexts_from_10_to_5000(48, 1), threads)
    bounds = [len(pieces) * thread // threads for thread in range(threads + 1)]
    parts = [pieces[first:last] for first, last in itertools.pairwise(bounds)]
    assert parts == [sorted(part, reverse=True) for part in parts]


@each_path
@pytest.mark.parametrize("threads", [1, 3])
def test_a_long_context_in_a_crowd_is_cut_and_put_together(path: KernelPath, threads: int) -> None:
    rig = Rig(SHAPE, path, threads=threads)
    texts = {row: tokens_of(650 if row == 4 else 20 + row, seed=row) for row in range(12)}
    for row, text in texts.items():
        rig.step((row, 0, text[:-1]))
    found = rig.step(*((row, len(text) - 1, text[-1:]) for row, text in texts.items()))
    for row, text in texts.items():
        rig.check(text, found[row : row + 1])
