"""What the parser accepts, refuses, and takes for the same revision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from operator_builders import make_service
from tidemill_operator import names
from tidemill_operator.durations import parse_duration
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.spec import Portion, parse, revision_of

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("1h30m", 5400), ("500ms", 0.5), ("90s", 90), ("1m500ms", 60.5)]
)
def test_reads_durations(text: str, seconds: float) -> None:
    assert parse_duration("spec.x", text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "1.5h", "5 m", "-5m", 5, None, "1h2m3s4ms5h"])
def test_refuses_what_is_not_a_duration_and_names_the_field(text: object) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.drain\.timeout: .*not a duration"):
        parse_duration("spec.drain.timeout", text)


def test_gives_defaults_to_what_is_absent() -> None:
    spec = parse(make_service())
    assert spec.model.served_names == ("chat",)
    assert spec.model.load_timeout_seconds == 1800
    assert spec.drain_timeout_seconds == 300
    assert spec.replicas == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {}}, "spec.model.uri"),
        ({"model": {"uri": "ftp://a/b"}}, "spec.model.uri"),
        ({"model": {"uri": "sim://a", "loadTimeout": "0s"}}, "spec.model.loadTimeout"),
        ({"replicas": None}, "spec.replicas"),
        ({"scaling": {"maxReplicas": 2}}, "spec.replicas"),
        ({"replicas": None, "scaling": {"minReplicas": 3, "maxReplicas": 2}}, "spec.scaling.minReplicas"),
        ({"replicas": None, "scaling": {}}, "spec.scaling.maxReplicas"),
        ({"routing": {"ingress": {}}}, "spec.routing.ingress.host"),
        (
            {"parallelism": {"tensor": 2}, "resources": {"limits": {"x.example/gpu": 3}}},
            "spec.resources.limits",
        ),
        ({"routing": {"hostnames": ["a.example.com"]}}, "spec.routing.hostnames"),
        (
            {"routing": {"ingress": {"host": "a.example.com"}, "parentRefs": [{"name": "public"}]}},
            "spec.routing.parentRefs",
        ),
        ({"rollout": {"maxSurge": "a lot"}}, "spec.rollout.maxSurge"),
        ({"rollout": {"maxSurge": 0}}, "spec.rollout"),
        ({"drain": {"timeout": "soon"}}, "spec.drain.timeout"),
    ],
)
def test_refuses_a_bad_spec_and_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(make_service(changes))
    assert refused.value.field == field


def test_a_larger_model_has_longer_to_load_unless_a_time_is_given() -> None:
    hub = {"uri": "hf://org/model", "cache": {"size": "500G"}}
    assert parse(make_service({"model": hub})).model.load_timeout_seconds == 1800 + 10_000
    assert parse(make_service({"model": {**hub, "loadTimeout": "1m"}})).model.load_timeout_seconds == 60


def test_refuses_a_name_that_leaves_no_room_for_the_childrens() -> None:
    with pytest.raises(InvalidSpec, match="at most 40"):
        parse(make_service(name="n" * 41))


@pytest.mark.parametrize(
    ("portion", "total", "up", "down"),
    [(Portion(amount=2), 3, 2, 2), (Portion(amount=25, is_percent=True), 3, 1, 0)],
)
def test_percentages_round_as_asked(portion: Portion, total: int, up: int, down: int) -> None:
    assert portion.of(total, round_up=True) == up
    assert portion.of(total, round_up=False) == down


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 7},
        {"suspend": True},
        {"routing": {"ingress": {"host": "chat.example.com"}}},
        {"rollout": {"maxSurge": 2}},
        {"disruption": {"maxUnavailable": 2}},
        {"replicas": None, "scaling": {"maxReplicas": 3}},
        {"engine": {}},
    ],
)
def test_what_does_not_reach_a_pod_keeps_the_revision(changes: dict[str, Any]) -> None:
    assert revision_of(make_service(changes)) == revision_of(make_service())


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"uri": "sim://other"}},
        {"model": {"uri": "sim://demo", "servedNames": ["a"]}},
        {"engine": {"dtype": "float32"}},
        {"resources": {"requests": {"cpu": 1}}},
        {"drain": {"timeout": "1m"}},
    ],
)
def test_what_reaches_a_pod_makes_a_new_revision(changes: dict[str, Any]) -> None:
    assert revision_of(make_service(changes)) != revision_of(make_service())


def test_the_restart_annotation_makes_a_new_revision() -> None:
    restarted = make_service(annotations={names.ANNOTATION_RESTARTED_AT: "2026-11-29T12:00:00Z"})
    assert revision_of(restarted) != revision_of(make_service())


def test_a_revision_never_changes_between_versions_of_the_operator() -> None:
    """A changed hash would restart every model in the world at the next upgrade."""
    assert revision_of(make_service()) == "d974f607"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_parse(path: Path) -> None:
    documents = yaml.safe_load_all(path.read_text())
    services = [document for document in documents if document["kind"] == names.KIND]
    assert services
    assert all(parse(service).model.uri for service in services)
