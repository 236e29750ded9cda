"""The figures for KEDA and others, at whichever operator pod is asked."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from autoscaling_builders import make_load
from tidemill_operator import names
from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.autoscaling.model import ScalingState
from tidemill_operator.fleet.http import add_scaling_routes
from tidemill_operator.fleet.summary import document_of, figures_of
from tidemill_operator.scaling_spec import parse_scaling

AiohttpClient = Callable[[web.Application], Awaitable[Any]]
DOCUMENT = {"desiredReplicas": 3, "queueLength": 7}


EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDING = '{"scaling":{}}\n{"at":1.0}\n'


@dataclass
class KnownOfOne:
    """One service, or nothing."""

    figures: Mapping[str, Any] | None
    of: tuple[str, str] = ("a", "b")

    def document(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self.figures if (namespace, name) == self.of else None

    def recording(self, namespace: str, name: str) -> Iterator[bytes] | None:
        if self.document(namespace, name) is None:
            return None
        return (line.encode() for line in RECORDING.splitlines(keepends=True))


def make_app(
    document: Mapping[str, Any] | None, leader: str | None = None, of: tuple[str, str] = ("a", "b")
) -> web.Application:
    app = web.Application()

    async def leader_url() -> str | None:
        return leader

    add_scaling_routes(app, KnownOfOne(document, of), leader_url)
    return app


async def test_the_operator_that_acts_has_the_figures(aiohttp_client: AiohttpClient) -> None:
    client = await aiohttp_client(make_app(DOCUMENT))
    answer = await client.get("/scaling/a/b")
    assert (answer.status, await answer.json()) == (200, DOCUMENT)


async def test_a_service_without_figures_is_an_error_and_never_zero(aiohttp_client: AiohttpClient) -> None:
    client = await aiohttp_client(make_app(DOCUMENT))
    answer = await client.get("/scaling/a/other")
    assert answer.status == 404
    assert "a/other" in (await answer.json())["error"]


async def test_a_standby_answers_with_the_figures_of_the_one_that_acts(aiohttp_client: AiohttpClient) -> None:
    async with TestServer(make_app(DOCUMENT)) as leader:
        client = await aiohttp_client(make_app(None, str(leader.make_url("")).rstrip("/")))
        answer = await client.get("/scaling/a/b")
        assert (answer.status, await answer.json()) == (200, DOCUMENT)
        assert (await client.get("/scaling/a/other")).status == 404


async def test_a_standby_that_cannot_reach_the_one_that_acts_says_so(aiohttp_client: AiohttpClient) -> None:
    client = await aiohttp_client(make_app(None, "http://127.0.0.1:1"))
    assert (await client.get("/scaling/a/b")).status == 503


async def test_two_that_both_take_the_other_for_the_one_that_acts_do_not_ask_in_circles(
    aiohttp_client: AiohttpClient,
) -> None:
    async with TestServer(make_app(None, "http://127.0.0.1:1")) as other:
        client = await aiohttp_client(make_app(None, str(other.make_url("")).rstrip("/")))
        assert (await client.get("/scaling/a/b")).status == 404


async def test_a_recording_is_lines_of_json_at_whichever_operator_is_asked(
    aiohttp_client: AiohttpClient,
) -> None:
    async with TestServer(make_app(DOCUMENT)) as leader:
        client = await aiohttp_client(make_app(None, str(leader.make_url("")).rstrip("/")))
        answer = await client.get("/scaling/a/b/recording")
        assert (answer.status, await answer.text()) == (200, RECORDING)
        assert answer.content_type == "application/x-ndjson"
        assert (await client.get("/scaling/a/other/recording")).status == 404


async def test_the_shipped_scaled_object_finds_its_number_where_it_says(
    aiohttp_client: AiohttpClient,
) -> None:
    advisory, scaled = yaml.safe_load_all((EXAMPLES / "keda.yaml").read_text(encoding="utf-8"))
    policy = parse_scaling(advisory["spec"]["scaling"])
    assert policy is not None
    load = make_load(2)
    decision = desired_replicas(load, policy, ScalingState(), load.at)
    document = document_of(policy, decision, figures_of(load, decision), load.at)
    target = scaled["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (names.KIND, advisory["metadata"]["name"])
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "AverageValue")
    url = URL(trigger["metadata"]["url"])
    assert url.port == names.OPERATOR_HTTP_PORT
    client = await aiohttp_client(make_app(document, of=("default", target["name"])))
    answer = await (await client.get(url.path)).json()
    value = functools.reduce(
        lambda part, key: part[key], trigger["metadata"]["valueLocation"].split("."), answer
    )
    wanted = math.ceil(value / float(trigger["metadata"]["targetValue"]))
    assert wanted == decision.replicas > 0
