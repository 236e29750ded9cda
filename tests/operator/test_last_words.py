"""What is heard of engines that were sent away by others and could not finish."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest

from tidemill_operator import metrics, names
from tidemill_operator.keys import Key
from tidemill_operator.last_words import CutStreams, LastWords
from tidemill_operator.leader import LeaderElector
from tidemill_operator.queue import Again, Outcome
from tidemill_operator.reconcile import Reconciler
from tidemill_operator.runtime import Operator, Settings

KEY = Key("prod", "chat")
CHAIN = (("ReplicaSet", "chat-r1-5f"), ("Deployment", "chat-r1"), (names.KIND, "chat"))
SAID = {"reason": "DrainTimeout", "message": "3 requests had not ended when the drain timeout was over"}


def ending(message: object = SAID, **changes: Any) -> dict[str, Any]:
    """Build a pod that was deleted and whose engine has ended."""
    text = message if isinstance(message, str) else json.dumps(message)
    ended = {"exitCode": 0, "reason": "Completed", "message": text}
    metadata = {
        "namespace": "prod",
        "name": "chat-1",
        "uid": "uid-1",
        "deletionTimestamp": "2026-11-29T12:00:00Z",
        "labels": {names.LABEL_SERVICE: "chat", names.LABEL_ROUTABLE: "true"},
        "ownerReferences": owned_by("ReplicaSet", "chat-r1-5f"),
        **changes,
    }
    container = {"name": "engine", "state": {"terminated": ended}}
    return {"metadata": metadata, "spec": {}, "status": {"containerStatuses": [container]}}


def restarted() -> dict[str, Any]:
    """Build a pod that was deleted long after its engine had ended once."""
    pod = ending()
    (container,) = pod["status"]["containerStatuses"]
    container |= {"state": {"running": {}}, "lastState": container["state"]}
    return pod


def owned_by(kind: str, name: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}]


def owners() -> list[tuple[str, dict[str, Any]]]:
    """Build what stands between the replica and its service, as the watches show it."""
    pairs = pairwise(CHAIN)
    return [
        (
            kind,
            {"metadata": {"namespace": "prod", "uid": f"uid-{name}", "ownerReferences": owned_by(*above)}},
        )
        for (kind, name), above in pairs
    ]


def make_words() -> LastWords:
    words = LastWords()
    for kind, obj in owners():
        words.note_owner(kind, obj)
    return words


def test_a_replica_that_was_evicted_says_how_many_streams_were_cut() -> None:
    words = make_words()
    assert words.note(ending()) == KEY
    assert words.take(KEY) == (CutStreams(pod="chat-1", num_streams=3),)


def test_the_same_end_is_told_once_however_often_it_is_seen() -> None:
    words = make_words()
    words.note(ending())
    assert len(words.take(KEY)) == 1
    assert words.note(ending()) is None
    assert words.take(KEY) == ()


def test_services_hear_of_their_own_replicas_alone() -> None:
    words = make_words()
    words.note(ending())
    assert words.take(Key("prod", "other")) == ()


def test_a_sidecar_that_ends_badly_after_the_engine_hides_nothing() -> None:
    pod = ending()
    pod["status"]["initContainerStatuses"] = [
        {"name": "exporter", "state": {"terminated": {"exitCode": 143}}}
    ]
    assert make_words().note(pod) == KEY


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(ending(deletionTimestamp=None), id="a container that restarts"),
        pytest.param(
            ending(labels={names.LABEL_ROUTABLE: "false"}), id="a replica that the operator drained"
        ),
        pytest.param(ending(""), id="an engine that finished"),
        pytest.param(ending("panic"), id="other words"),
        pytest.param(ending(ownerReferences=[]), id="a pod that nothing controls, whatever its labels say"),
        pytest.param(
            ending(ownerReferences=owned_by("ReplicaSet", "another")), id="a pod of a ReplicaSet not ours"
        ),
        pytest.param(ending(namespace="elsewhere"), id="a pod that names owners of another namespace"),
        pytest.param(restarted(), id="an engine that began anew after that"),
        pytest.param(ending(["DrainTimeout"]), id="words of another form"),
        pytest.param(ending({"reason": "CoreDied", "message": "3 requests "}), id="another reason"),
        pytest.param(ending({"reason": "DrainTimeout", "message": "many"}), id="no number"),
    ],
)
def test_nothing_is_heard_of(pod: dict[str, Any]) -> None:
    words = make_words()
    assert words.note(pod) is None
    assert words.take(KEY) == ()


async def test_no_run_begins_before_all_that_there_is_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that ends while the operator learns what there is must not have its service planned anew."""
    monkeypatch.setattr(LeaderElector, "is_leader", True)
    monkeypatch.setattr(metrics.FLEET, "rows", metrics.FLEET.rows)
    runs: list[Key] = []
    settings = Settings(engine_image="engine", operator_namespace="tidemill-system", identity="test")
    operator = Operator(settings, Mock(), Mock())

    async def run(_: Reconciler, key: Key) -> Outcome:
        runs.append(key)
        return Outcome.GONE

    monkeypatch.setattr(Reconciler, "run", run)
    operator._on_change("Pod", ending(uid="uid-forged"))
    for kind, obj in owners():
        operator._on_change(kind, {**obj, "kind": kind})
    operator._on_change("Pod", ending())
    assert operator._queue.keys == {KEY}
    assert isinstance(await operator._run(KEY), Again)
    operator._is_caught_up = True
    assert await operator._run(KEY) is Outcome.GONE
    await operator._queue.close()
    assert runs == [KEY]
