"""Which replicas a request may go to at all, as tables."""

from typing import Any

import pytest

from gateway.builders import parsed_pod
from tidemill_gateway.choice import eligible, failed_revision_of
from tidemill_gateway.service_spec import Revisions

A, B, C = (parsed_pod(name) for name in "abc")
OLD, NEW = parsed_pod("old", revision="old"), parsed_pod("new", revision="new")


def test_all_that_take_requests_are_eligible() -> None:
    assert eligible([A, B, C]) == (A, B, C)
    assert eligible([]) == ()


def test_what_was_tried_is_not_tried_again() -> None:
    assert eligible([A, B], tried={A.uid}) == (B,)
    assert eligible([A, B], tried={A.uid, B.uid}) == ()


def test_who_failed_a_moment_ago_is_asked_only_when_nothing_else_is_left() -> None:
    assert eligible([A, B], avoided={A.uid}) == (B,)
    assert eligible([A, B], avoided={A.uid}, tried={B.uid}) == (A,)


@pytest.mark.parametrize(
    "state",
    [
        {"ready": False},
        {"routable": "false"},
        {"routable": ""},
        {"terminating": True},
        {"address": ""},
    ],
)
def test_a_replica_that_takes_no_requests_is_never_eligible(state: dict[str, Any]) -> None:
    assert eligible([parsed_pod("x", **state)]) == ()


def test_a_request_keeps_to_its_revision_while_that_has_a_replica() -> None:
    assert eligible([OLD, NEW], revision="new") == (NEW,)
    assert eligible([OLD], revision="new") == (OLD,)
    assert eligible([OLD, NEW], revision="new", tried={NEW.uid}) == (OLD,)


def test_a_failed_revision_gets_nothing_while_another_one_has_a_replica() -> None:
    assert eligible([OLD, NEW], failed_revision="new") == (OLD,)
    assert eligible([OLD, NEW], failed_revision="new", avoided={OLD.uid}) == (OLD,)
    assert eligible([NEW], failed_revision="new") == (NEW,)


def test_the_revision_that_serves_is_never_taken_for_a_failed_one() -> None:
    assert failed_revision_of(Revisions(current="a", failed="b")) == "b"
    assert failed_revision_of(Revisions(current="a", failed="a")) == ""
