from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from examples import examples
from tidemill_engine.kv import BlockPool, IntegrityError, PrefixRoots, SwapSpace, extend_chain, next_digest
from tidemill_engine.kv.compaction import find_run, fragmentation_ratio
from tidemill_engine.kv.last_use import LastUseQueue
from tidemill_engine.step import IntArray, int_array


def taken(pool: BlockPool, count: int) -> IntArray:
    blocks = pool.allocate(count)
    assert blocks is not None
    return blocks


def published(pool: BlockPool, count: int, name: bytes = b"") -> list[int]:
    """Take blocks and publish them, as a request would that has computed them."""
    blocks: list[int] = taken(pool, count).tolist()
    pool.index.publish(blocks, [name + bytes([block]) for block in blocks])
    return blocks


def test_blocks_of_which_nothing_is_known_are_reused_before_cached_ones() -> None:
    pool = BlockPool(4)
    cached = published(pool, 2)
    unknown = taken(pool, 1)
    pool.release(int_array(cached))
    pool.release(unknown)
    assert sorted(taken(pool, 2).tolist()) == sorted([3, *unknown.tolist()])
    assert pool.num_cached == 2


def test_cached_blocks_are_reused_by_last_use_and_a_requests_tail_first() -> None:
    pool = BlockPool(4)
    first, second = published(pool, 2, b"a"), published(pool, 2, b"b")
    pool.release(int_array(second))
    pool.release(int_array(first))
    assert taken(pool, 3).tolist() == [second[1], second[0], first[1]]


def test_a_used_cached_block_goes_to_the_end_of_the_order() -> None:
    pool = BlockPool(3)
    old, other = published(pool, 1, b"a"), published(pool, 1, b"b")
    pool.release(int_array(old))
    pool.release(int_array(other))
    pool.revive(int_array(old))
    pool.release(int_array(old))
    assert taken(pool, 2).tolist()[1] == other[0]


def test_a_cached_block_counts_as_free_and_is_found_until_it_is_reused() -> None:
    pool = BlockPool(2)
    blocks = published(pool, 2)
    names = [bytes([block]) for block in blocks]
    pool.release(int_array(blocks))
    assert (pool.num_free, pool.num_held, pool.num_cached) == (2, 0, 2)
    assert pool.index.find(names) == blocks
    assert taken(pool, 1).tolist() == [blocks[1]]
    assert pool.index.find(names) == blocks[:1]


def test_revived_blocks_are_shared_with_those_that_hold_them() -> None:
    pool = BlockPool(3)
    blocks = published(pool, 2)
    pool.release(int_array(blocks[1:]))
    assert pool.num_idle(int_array(blocks)) == 1
    pool.revive(int_array(blocks))
    assert pool.num_holders(int_array(blocks)).tolist() == [2, 1]
    pool.check_integrity(int_array([*blocks, blocks[0]]))


def test_a_second_block_with_the_same_content_stays_unknown() -> None:
    pool = BlockPool(2)
    first, second = taken(pool, 2).tolist()
    pool.index.publish([first], [b"same"])
    pool.index.publish([second], [b"same"])
    pool.release(int_array([first, second]))
    assert pool.num_cached == 1
    assert pool.index.find([b"same"]) == [first]


def test_what_is_forgotten_is_not_found_again() -> None:
    pool = BlockPool(1)
    blocks = published(pool, 1)
    pool.forget(int_array(blocks))
    assert pool.index.find([bytes([blocks[0]])]) == []
    pool.release(int_array(blocks))
    pool.check_integrity(int_array())


def test_reviving_what_is_not_known_and_forgetting_what_is_free_are_errors() -> None:
    pool = BlockPool(1)
    with pytest.raises(IntegrityError):
        pool.revive(int_array([0]))
    with pytest.raises(IntegrityError):
        pool.forget(int_array([0]))


def test_equal_tokens_have_equal_digests_only_under_one_root_and_after_equal_tokens() -> None:
    roots = PrefixRoots(b"key", "model")
    tokens = int_array([1, 2, 3, 4])
    chains = {}
    for name, root in {
        "a": roots.root("a"),
        "b": roots.root("b"),
        "adapter": roots.root("a", 1),
        "other model": PrefixRoots(b"key", "other").root("a"),
        "other process": PrefixRoots(b"other", "model").root("a"),
    }.items():
        chain: list[bytes] = []
        extend_chain(chain, root, tokens, 2)
        chains[name] = chain
    assert len({digest for chain in chains.values() for digest in chain}) == 10
    again: list[bytes] = []
    extend_chain(again, roots.root("a"), tokens[:3], 2)
    assert again == chains["a"][:1]
    extend_chain(again, roots.root("a"), tokens, 2)
    assert again == chains["a"]
    assert next_digest(chains["a"][0], tokens[2:]) == chains["a"][1]


def test_tenant_names_cannot_be_mixed_up_with_the_model_or_the_adapter() -> None:
    assert PrefixRoots(b"k", "bc").root("a") != PrefixRoots(b"k", "c").root("ab")


def test_the_roots_of_more_tenants_than_are_remembered_stay_what_they_were() -> None:
    roots = PrefixRoots(b"key", "model")
    first = roots.root("0")
    for number in range(5000):
        roots.root(str(number))
    assert roots.root("0") == first


def test_places_of_the_cpu_pool_that_a_step_reads_are_free_from_the_next_step_on() -> None:
    swap = SwapSpace(3)
    places = swap.take(2)
    assert places is not None
    assert swap.take(2) is None
    swap.leave(places)
    assert swap.num_free == 1
    swap.end_step()
    assert swap.num_free == 3
    with pytest.raises(IntegrityError):
        swap.free(places)
    swap.check_integrity()


def test_fragmentation_counts_neighbours_that_are_not() -> None:
    table = int_array([[0, 1, 2, 0], [5, 9, 10, 3], [7, 0, 0, 0]])
    assert fragmentation_ratio(table, int_array([3, 4, 1])) == pytest.approx(2 / 5)
    assert fragmentation_ratio(table, int_array([0, 1, 1])) == 0.0


def test_the_shortest_run_that_is_long_enough_is_found() -> None:
    free = np.array([1, 1, 1, 0, 1, 1, 0, 1, 1], dtype=np.bool_)
    assert find_run(free, 2) == 4
    assert find_run(free, 3) == 0
    assert find_run(free, 4) is None


NUM_BLOCKS = 8


class LastUseMachine(RuleBasedStateMachine):
    """The queue against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = LastUseQueue(NUM_BLOCKS)
        self.model: list[int] = []

    @rule(chosen=st.lists(st.integers(0, NUM_BLOCKS - 1), unique=True))
    def push(self, chosen: list[int]) -> None:
        fresh = [block for block in chosen if block not in self.model]
        self.queue.push(int_array(fresh))
        self.model += fresh

    @rule(chosen=st.sets(st.integers(0, NUM_BLOCKS - 1)))
    def remove(self, chosen: set[int]) -> None:
        here = [block for block in self.model if block in chosen]
        self.queue.remove(int_array(here))
        self.model = [block for block in self.model if block not in chosen]

    @rule(count=st.integers(0, NUM_BLOCKS))
    def pop(self, count: int) -> None:
        count = min(count, len(self.model))
        assert self.queue.pop(count).tolist() == self.model[:count]
        self.model = self.model[count:]

    @invariant()
    def same_as_the_list(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.in_order().tolist() == self.model


class PoolMachine(RuleBasedStateMachine):
    """Holders that take, share, publish, find and release blocks, against what they hold themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.names = 0

    def holder(self, data: st.DataObject) -> list[int]:
        return self.held[data.draw(st.integers(0, len(self.held) - 1))]

    @rule(count=st.integers(1, 4))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > free)
        if blocks is not None:
            assert not {int(block) for block in blocks} & {b for held in self.held for b in held}
            for block in blocks.tolist():
                self.content.pop(block, None)
            self.held.append(blocks.tolist())

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = self.holder(data)
        self.pool.share(int_array(blocks))
        self.held.append(list(blocks))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        blocks = self.holder(data)
        self.names += 1
        names = [bytes([self.names % 256, self.names // 256, index]) for index in range(len(blocks))]
        self.pool.index.publish(blocks, names)
        for block, name in zip(blocks, names, strict=True):
            self.content.setdefault(block, name)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def find_and_revive(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.content)))
        assert self.pool.index.find([self.content[block]]) == [block]
        self.pool.revive(int_array([block]))
        self.held.append([block])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.holder(data)
        self.held.remove(blocks)
        self.pool.release(int_array(blocks))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        blocks = self.holder(data)
        self.pool.forget(int_array(blocks))
        for block in blocks:
            self.content.pop(block, None)

    @rule(count=st.integers(1, 4))
    def take_a_run(self, count: int) -> None:
        first = find_run(self.pool.is_free(), count)
        if first is None:
            return
        blocks = list(range(first, first + count))
        self.pool.allocate_exactly(int_array(blocks))
        for block in blocks:
            self.content.pop(block, None)
        self.held.append(blocks)

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity(int_array([block for held in self.held for block in held]))
        for block, name in self.content.items():
            assert self.pool.index.find([name]) == [block]


TestLastUse = LastUseMachine.TestCase
TestLastUse.settings = settings(examples(60), stateful_step_count=30)
TestPool = PoolMachine.TestCase
TestPool.settings = settings(examples(60), stateful_step_count=30)
