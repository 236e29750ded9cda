"""Replica counts of revisions, as tables and as properties of whole rollouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_operator.rollout import RevisionCounts, bounds_of, grow_target, shrink_others
from tidemill_operator.spec import Portion, RolloutSpec

SURGE = RolloutSpec()
IN_PLACE = RolloutSpec(max_surge=Portion(amount=0), max_unavailable=Portion(amount=1))


def counts(
    revision: str, asked: int, ready: int | None = None, existing: int | None = None, created_at: str = ""
) -> RevisionCounts:
    return RevisionCounts(
        revision=revision,
        asked=asked,
        ready=asked if ready is None else ready,
        existing=asked if existing is None else existing,
        created_at=created_at,
    )


def split_replicas(
    desired: int,
    target: RevisionCounts,
    others: list[RevisionCounts],
    rollout: RolloutSpec,
    *,
    without_surge: bool = False,
) -> dict[str, int]:
    """Split replicas where what has nothing to finish goes at once."""
    bounds = bounds_of(rollout, desired, without_surge=without_surge)
    planned = dict(shrink_others(target, others, bounds))
    return {**planned, target.revision: grow_target(target, others, planned, bounds)}


CASES = {
    "the first revision gets all replicas at once": (3, counts("new", 0), [], SURGE, {"new": 3}),
    "nothing wanted takes all replicas away": (
        0,
        counts("new", 2),
        [counts("old", 1)],
        SURGE,
        {"new": 0, "old": 0},
    ),
    "a new revision starts within the surge": (
        3,
        counts("new", 0),
        [counts("old", 3)],
        SURGE,
        {"new": 1, "old": 3},
    ),
    "the old revision waits for the new one to be ready": (
        3,
        counts("new", 1, ready=0),
        [counts("old", 3)],
        SURGE,
        {"new": 1, "old": 3},
    ),
    "a ready replica of the new one frees one of the old": (
        3,
        counts("new", 1),
        [counts("old", 3)],
        SURGE,
        {"new": 2, "old": 2},
    ),
    "the last old replica goes when all new ones are ready": (
        3,
        counts("new", 3),
        [counts("old", 1)],
        SURGE,
        {"new": 3, "old": 0},
    ),
    "an old revision without a ready replica goes at once": (
        2,
        counts("new", 0),
        [counts("old", 2, ready=0)],
        SURGE,
        {"new": 2, "old": 0},
    ),
    "without surge an old replica goes first": (
        2,
        counts("new", 0),
        [counts("old", 2)],
        IN_PLACE,
        {"new": 0, "old": 1},
    ),
    "without surge the new one waits until the old pod is gone": (
        2,
        counts("new", 0),
        [counts("old", 1, existing=2)],
        IN_PLACE,
        {"new": 0, "old": 1},
    ),
    "without surge the new one takes the place of a pod that is gone": (
        2,
        counts("new", 0),
        [counts("old", 1)],
        IN_PLACE,
        {"new": 1, "old": 1},
    ),
    "without surge pods that leave the last old revision still hold their place": (
        1,
        counts("new", 0),
        [counts("old", 0, existing=1)],
        IN_PLACE,
        {"new": 0, "old": 0},
    ),
    "of two old revisions the one with more ready replicas stays": (
        3,
        counts("c", 0),
        [counts("a", 2), counts("b", 1)],
        SURGE,
        {"a": 2, "b": 0, "c": 2},
    ),
    "of equals the newer one stays": (
        2,
        counts("c", 0),
        [counts("a", 1, created_at="1"), counts("b", 1, created_at="2")],
        SURGE,
        {"a": 0, "b": 1, "c": 2},
    ),
    "a smaller wish during a rollout shrinks the old one": (
        1,
        counts("new", 1),
        [counts("old", 2)],
        SURGE,
        {"new": 1, "old": 0},
    ),
    "an unfinished rollout is turned back by giving the replicas to the former revision": (
        2,
        counts("a", 1),
        [counts("b", 1, ready=0)],
        SURGE,
        {"a": 2, "b": 0},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_splits_replicas_so_that(case: str) -> None:
    desired, target, others, rollout, expected = CASES[case]
    assert split_replicas(desired, target, others, rollout) == expected


def test_never_allows_neither_surge_nor_unavailability() -> None:
    tiny = RolloutSpec(max_surge=Portion(amount=0), max_unavailable=Portion(amount=10, is_percent=True))
    assert bounds_of(tiny, 3).least_ready == 2


@given(
    desired=st.integers(1, 12),
    surge=st.integers(0, 4),
    unavailable=st.integers(0, 4),
)
def test_a_rollout_ends_and_stays_within_its_bounds(desired: int, surge: int, unavailable: int) -> None:
    rollout = RolloutSpec(max_surge=Portion(amount=surge), max_unavailable=Portion(amount=unavailable))
    bounds = bounds_of(rollout, desired)
    old, new = desired, 0
    for _ in range(3 * desired + 3):
        planned = split_replicas(desired, counts("new", new), [counts("old", old)], rollout)
        assert planned["old"] + planned["new"] <= max(bounds.most, desired)
        assert min(planned["old"], old) + new >= bounds.least_ready
        old, new = planned["old"], planned["new"]
    assert (old, new) == (0, desired)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, RevisionCounts, list[RevisionCounts], RolloutSpec]:
    def one(name: str) -> RevisionCounts:
        asked = draw(st.integers(0, 6))
        return counts(name, asked, ready=draw(st.integers(0, asked)), existing=draw(st.integers(0, 8)))

    others = [one(f"old-{number}") for number in range(draw(st.integers(0, 3)))]
    rollout = RolloutSpec(
        max_surge=Portion(amount=draw(st.integers(0, 3))),
        max_unavailable=Portion(amount=draw(st.integers(0, 3))),
    )
    return draw(st.integers(0, 6)), one("new"), others, rollout


@given(worlds())
def test_gives_replicas_to_at_most_two_revisions_and_never_too_many(
    world: tuple[int, RevisionCounts, list[RevisionCounts], RolloutSpec],
) -> None:
    desired, target, others, rollout = world
    planned = split_replicas(desired, target, others, rollout)
    assert set(planned) == {target.revision, *(other.revision for other in others)}
    assert sum(count > 0 for count in planned.values()) <= 2
    assert min(planned.values()) >= 0
    assert planned["new"] <= desired
    assert all(planned[other.revision] <= other.asked for other in others)
