"""What is heard of engines that were sent away by others and could not finish."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill_operator import names
from tidemill_operator.keys import Key
from tidemill_operator.last_words import CutStreams, LastWords

KEY = Key("prod", "chat")
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
        **changes,
    }
    container = {"name": "engine", "state": {"terminated": ended}}
    return {"metadata": metadata, "spec": {}, "status": {"containerStatuses": [container]}}


def test_a_replica_that_was_evicted_says_how_many_streams_were_cut() -> None:
    words = LastWords()
    assert words.note(ending()) == KEY
    assert words.take(KEY) == (CutStreams(pod="chat-1", num_streams=3),)


def test_the_same_end_is_told_once_however_often_it_is_seen() -> None:
    words = LastWords()
    words.note(ending())
    assert len(words.take(KEY)) == 1
    assert words.note(ending()) is None
    assert words.take(KEY) == ()


def test_services_hear_of_their_own_replicas_alone() -> None:
    words = LastWords()
    words.note(ending())
    assert words.take(Key("prod", "other")) == ()


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(ending(deletionTimestamp=None), id="a container that restarts"),
        pytest.param(
            ending(labels={names.LABEL_ROUTABLE: "false"}), id="a replica that the operator drained"
        ),
        pytest.param(ending(""), id="an engine that finished"),
        pytest.param(ending("panic"), id="other words"),
        pytest.param(ending(["DrainTimeout"]), id="words of another form"),
        pytest.param(ending({"reason": "CoreDied", "message": "3 requests "}), id="another reason"),
        pytest.param(ending({"reason": "DrainTimeout", "message": "many"}), id="no number"),
    ],
)
def test_nothing_is_heard_of(pod: dict[str, Any]) -> None:
    words = LastWords()
    words.note(pod)
    assert words.take(KEY) == ()
