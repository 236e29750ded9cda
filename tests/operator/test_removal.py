"""Which replicas go, in what order, and how far a Deployment may be lowered: tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operator_builders import NOW
from removal_builders import JUST_NOW, LONG_AGO, draining, load, serving, starting
from tidemill_operator import names
from tidemill_operator.actions import EngineCall
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import PodView
from tidemill_operator.removal import (
    COST_DONE,
    COST_DRAINING,
    Progress,
    Removal,
    Scene,
    plan_removal,
)

FINISHED = EngineLoad(is_refusing=True)
BUSY = EngineLoad(is_refusing=True, in_flight_requests=3)
Loads = dict[str, EngineLoad | None]


def plan(pods: list[PodView], wanted: int, loads: Loads | None, asked: int | None = None) -> Removal:
    scene = Scene(
        asked=len(pods) if asked is None else asked,
        pods=pods,
        now=NOW,
        drain_timeout_seconds=60,
        loads=loads,
    )
    return plan_removal(scene, wanted)


def calls(removal: Removal, call: EngineCall) -> list[str]:
    return [change.pod for change in removal.changes if change.call is call]


A, B, C = serving("a"), serving("b"), serving("c")
VICTIMS: dict[str, tuple[list[PodView], int, Loads, list[str]]] = {
    "the replica with the fewest in-flight tokens drains first": (
        [A, B, C],
        2,
        {"a": load(50), "b": load(7), "c": load(90)},
        ["b"],
    ),
    "of equally busy ones the one with the coldest prefix cache drains": (
        [A, B, C],
        2,
        {"a": load(7, cached=90), "b": load(7, cached=3), "c": load(7, cached=60)},
        ["b"],
    ),
    "a replica whose load is unknown is taken for the busiest": (
        [A, B, C],
        2,
        {"a": None, "b": load(900), "c": load(901)},
        ["b"],
    ),
    "the busiest of four replicas survives a scale-down by three": (
        [A, B, C, serving("d")],
        1,
        {"a": load(10), "b": load(10_000), "c": load(9), "d": load(8)},
        ["a", "c", "d"],
    ),
    "nobody drains while an unscheduled pod can go": (
        [A, starting("b", is_scheduled=False, phase="Pending"), C],
        2,
        {"a": load(1), "c": load(1)},
        [],
    ),
    "nobody drains while a pod that is not ready can go": ([A, starting("b"), C], 2, {}, []),
    "beside one that is not ready only one more drains": (
        [A, starting("b"), C],
        1,
        {"a": load(5), "c": load(4)},
        ["c"],
    ),
    "a replica that drains already is the victim, whatever others do": (
        [A, draining("b"), C],
        2,
        {"a": load(0), "b": BUSY, "c": load(0)},
        [],
    ),
}


@pytest.mark.parametrize("case", VICTIMS)
def test_chooses_victims_so_that(case: str) -> None:
    pods, wanted, loads, expected = VICTIMS[case]
    assert calls(plan(pods, wanted, loads), EngineCall.DRAIN) == expected


COUNTS: dict[str, tuple[list[PodView], int, int, Loads, int]] = {
    "a count is not lowered when a drain begins": ([A, B], 2, 1, {"a": load(5), "b": load(9)}, 2),
    "a count is not lowered while streams are finishing": ([A, draining("b")], 2, 1, {"b": BUSY}, 2),
    "a drained replica that still accepts keeps its place": (
        [A, draining("b")],
        2,
        1,
        {"b": EngineLoad(in_flight_requests=0, is_refusing=False)},
        2,
    ),
    "a count is lowered when the victim is drained": ([A, draining("b")], 2, 1, {"b": FINISHED}, 1),
    "a drained replica waits until the kubelet calls it not ready, if another would go before it": (
        [A, draining("b", is_ready=True, deletion_cost=COST_DONE), draining("c")],
        3,
        1,
        {"b": FINISHED, "c": BUSY},
        3,
    ),
    "a drained replica that the kubelet still calls ready goes by its deletion cost": (
        [A, draining("b", is_ready=True, deletion_cost=COST_DONE)],
        2,
        1,
        {"b": FINISHED},
        1,
    ),
    "a drained replica of equal rank with a busy one waits for its deletion cost": (
        [A, draining("b"), draining("c")],
        3,
        1,
        {"b": FINISHED, "c": BUSY},
        3,
    ),
    "of two that drain the drained one goes as soon as its deletion cost is written": (
        [A, draining("b", deletion_cost=COST_DONE), draining("c")],
        3,
        1,
        {"b": FINISHED, "c": BUSY},
        2,
    ),
    "unscheduled, pending and not-ready pods go at once": (
        [
            A,
            starting("b", is_scheduled=False, phase="Pending"),
            starting("c", phase="Pending"),
            starting("d"),
        ],
        4,
        1,
        {},
        1,
    ),
    "pods that were never made go at once": ([A], 3, 1, {}, 1),
    "an evicted victim lowers the count once, and there is no second victim": ([A, B], 3, 2, {}, 2),
    "the replacement of an evicted victim is the one that goes": (
        [A, B, starting("new", phase="Pending", is_scheduled=False)],
        3,
        2,
        {},
        2,
    ),
    "nothing is lowered twice while the ReplicaSet still deletes": (
        [A, draining("b", deletion_cost=COST_DONE)],
        1,
        1,
        {"b": FINISHED},
        1,
    ),
    "a drained engine without an address goes": ([A, draining("b", ip="")], 2, 1, {}, 1),
    "a raised count is written at once": ([A], 1, 3, {}, 3),
}


@pytest.mark.parametrize("case", COUNTS)
def test_lowers_so_that(case: str) -> None:
    pods, asked, wanted, loads, expected = COUNTS[case]
    removal = plan(pods, wanted, loads, asked)
    assert removal.count == expected
    assert calls(removal, EngineCall.DRAIN) in ([], ["a"])


def test_a_pending_pod_that_appears_goes_and_the_drained_one_is_taken_back() -> None:
    pods = [A, draining("b", deletion_cost=COST_DONE), starting("new", phase="Pending", is_scheduled=False)]
    removal = plan(pods, 2, {"b": FINISHED})
    assert removal.count == 2
    (change,) = removal.changes
    assert (change.pod, change.call) == ("b", EngineCall.TAKE_BACK)
    assert change.labels == {names.LABEL_ROUTABLE: "true"}
    assert change.annotations == {
        names.ANNOTATION_DRAIN_STARTED_AT: None,
        names.ANNOTATION_DELETION_COST: None,
    }


def test_a_replica_that_turned_not_ready_goes_and_the_drained_one_is_taken_back() -> None:
    removal = plan([A, draining("b", deletion_cost=COST_DONE), starting("c")], 2, {"b": FINISHED})
    assert calls(removal, EngineCall.TAKE_BACK) == ["b"]
    # Both are not ready, and the ReplicaSet would take the cheaper one: not before the other is dear again.
    assert removal.count == 3
    settled = plan([A, B, starting("c")], 2, {})
    assert settled.count == 2


def test_returning_load_takes_the_newest_drain_back_first_and_creates_nothing() -> None:
    pods = [A, draining("older", LONG_AGO), draining("newer", JUST_NOW)]
    removal = plan(pods, 2, {"older": BUSY, "newer": BUSY}, asked=3)
    assert (removal.count, calls(removal, EngineCall.TAKE_BACK)) == (3, ["newer"])
    more = plan(pods, 4, {"older": BUSY, "newer": BUSY}, asked=3)
    assert (more.count, calls(more, EngineCall.TAKE_BACK)) == (4, ["older", "newer"])


def test_a_drain_takes_the_replica_out_of_routing_and_notes_when() -> None:
    (change,) = plan([A, B], 1, {"a": load(3), "b": load(4)}).changes
    assert (change.pod, change.uid, change.ip, change.call) == ("a", "a", "ip-a", EngineCall.DRAIN)
    assert change.labels == {names.LABEL_ROUTABLE: "false"}
    assert change.annotations == {
        names.ANNOTATION_DRAIN_STARTED_AT: NOW,
        names.ANNOTATION_DELETION_COST: str(COST_DRAINING),
    }


def test_a_drained_replica_is_made_the_cheapest() -> None:
    (change,) = plan([A, draining("b")], 1, {"b": FINISHED}).changes
    assert change.annotations[names.ANNOTATION_DELETION_COST] == str(COST_DONE)
    assert change.annotations[names.ANNOTATION_DRAIN_STARTED_AT] == JUST_NOW


def test_a_drain_goes_on_after_a_restart_of_the_operator_since_pods_say_when_it_began() -> None:
    removal = plan([A, draining("b", LONG_AGO)], 1, {"b": BUSY})
    assert removal.leaving[0].progress is Progress.OVERDUE


def test_a_drain_beyond_its_deadline_goes_and_says_how_many_streams_it_had() -> None:
    removal = plan([A, draining("b", LONG_AGO)], 1, {"b": BUSY})
    assert removal.count == 1
    (leaving,) = removal.leaving
    assert (leaving.pod, leaving.progress, leaving.num_streams) == ("b", Progress.OVERDUE, 3)


def test_an_engine_that_restarted_while_draining_counts_as_draining_until_it_refuses() -> None:
    removal = plan([A, draining("b")], 1, {"b": EngineLoad(is_refusing=False)})
    assert (removal.count, removal.num_draining) == (2, 1)


def test_an_engine_that_does_not_answer_is_left_to_sigterm_after_a_while() -> None:
    soon = plan([A, draining("b", JUST_NOW)], 1, {"b": None})
    assert soon.count == 2
    late = plan([A, draining("b", "2026-11-29T11:59:20Z")], 1, {"b": None})
    assert (late.count, late.leaving[0].progress) == (1, Progress.UNREACHABLE)


def test_a_replica_that_is_needed_again_comes_back_when_its_engine_answers() -> None:
    waiting = plan([A, draining("b")], 2, {"b": None})
    assert (waiting.count, waiting.changes, waiting.num_draining) == (2, (), 1)
    heard = plan([A, draining("b")], 2, {"b": BUSY})
    assert (calls(heard, EngineCall.TAKE_BACK), heard.num_draining) == (["b"], 0)


def test_a_label_set_by_hand_on_a_replica_that_does_not_answer_begins_its_time() -> None:
    (change,) = plan([A, draining("b", drain_started_at=None)], 2, {"b": None}).changes
    assert change.call is EngineCall.NOTHING
    assert change.annotations[names.ANNOTATION_DRAIN_STARTED_AT] == NOW


def test_a_replica_that_is_needed_again_and_never_answers_is_replaced() -> None:
    lost = draining("b", LONG_AGO, is_ready=True, deletion_cost=COST_DONE)
    going = plan([A, lost], 2, {"b": None})
    assert (going.count, going.leaving[0].progress) == (1, Progress.UNREACHABLE)
    still_there = plan([A, lost], 2, {"b": None}, asked=1)
    assert still_there.count == 1
    assert plan([A], 2, {}, asked=1).count == 2


def test_a_replica_that_has_no_engine_any_more_comes_back_without_being_asked() -> None:
    removal = plan([A, replace(draining("b"), ip="")], 2, {"b": None})
    assert calls(removal, EngineCall.TAKE_BACK) == ["b"]


def test_asks_only_for_the_loads_that_decide() -> None:
    assert plan([A, B], 2, None).asks == frozenset()
    assert plan([A, starting("b")], 1, None).asks == frozenset()
    assert plan([A, B], 1, None).asks == {"a", "b"}
    assert plan([A, B, draining("c")], 2, None).asks == {"c"}
    assert plan([A, B, draining("c")], 3, None).asks == {"c"}
    assert plan([A, B], 1, {}).asks == frozenset()


def test_a_pod_from_a_template_without_the_label_gets_it_without_a_restart() -> None:
    old = serving("old", has_routable_label=False)
    (change,) = plan([old], 1, {}).changes
    assert change.labels == {names.LABEL_ROUTABLE: "true"}
    assert change.call is EngineCall.NOTHING


def test_counts_what_drains_and_not_what_goes_at_once() -> None:
    removal = plan([A, B, draining("c"), starting("d")], 1, {"a": load(1), "b": load(2), "c": BUSY})
    assert removal.num_draining == 2
