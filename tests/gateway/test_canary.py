"""Who tries a new revision."""

from typing import Any

import pytest

from tidemill_gateway.canary import revision_for
from tidemill_gateway.service_spec import Revisions

SESSIONS = [f"session-{number}" for number in range(2000)]


def share(**changes: Any) -> float:
    revisions = Revisions(**{"current": "old", "update": "new", **changes})
    return sum(revision_for(revisions, session) == "new" for session in SESSIONS) / len(SESSIONS)


@pytest.mark.parametrize("percent", [0, 5, 20, 50])
def test_the_new_revision_gets_its_share_of_sessions(percent: int) -> None:
    assert share(canary_percent=percent) == pytest.approx(percent / 100, abs=0.02)


def test_a_session_stays_and_only_moves_forward_when_the_share_grows() -> None:
    small, large = (Revisions(current="old", update="new", canary_percent=p) for p in (10, 30))
    for session in SESSIONS:
        assert revision_for(small, session) == revision_for(small, session)
        if revision_for(small, session) == "new":
            assert revision_for(large, session) == "new"


def test_a_failed_revision_gets_nobody() -> None:
    assert share(canary_percent=50, failed="new") == 0
    assert revision_for(Revisions(current="old", update="new", failed="new", canary_percent=50), "s") == "old"


@pytest.mark.parametrize(
    "revisions",
    [
        Revisions(current="old", update="new"),
        Revisions(current="same", update="same", canary_percent=20),
        Revisions(current="old", update="new", canary_percent=100),
        Revisions(current="", update="new", canary_percent=20),
        Revisions(),
    ],
)
def test_without_a_canary_every_replica_will_do(revisions: Revisions) -> None:
    assert {revision_for(revisions, session) for session in SESSIONS[:50]} == {None}
