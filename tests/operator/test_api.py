"""Requests as they go over the wire, to a server that notes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from tidemill_operator.api import Api, Place, load_configuration
from tidemill_operator.errors import ApiError, OperatorError
from tidemill_operator.watches import connection

Object = dict[str, Any]
PLACE = Place(kind="Deployment", namespace="prod", name="chat-00000000")
PATH = "/apis/apps/v1/namespaces/prod/deployments/chat-00000000"
MANIFEST = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"namespace": "prod", "name": "chat-00000000"},
}


@dataclass
class Recorded:
    method: str
    path: str
    query: dict[str, str]
    content_type: str
    authorization: str
    body: Object


@dataclass
class Server:
    """Answers in the order in which a test puts answers in."""

    requests: list[Recorded] = field(default_factory=list)
    answers: list[tuple[int, object]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.requests.append(
            Recorded(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                content_type=request.content_type,
                authorization=request.headers.get("Authorization", ""),
                body=json.loads(text) if text else {},
            )
        )
        status, answer = self.answers.pop(0)
        if isinstance(answer, str):
            return web.Response(status=status, text=answer)
        return web.json_response(answer, status=status)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    running = TestServer(app)
    await running.start_server()
    configuration = Configuration()
    configuration.host = str(running.make_url("")).rstrip("/")
    configuration.api_key = {"BearerToken": "Bearer secret"}
    made = Api(ApiClient(configuration=configuration))
    yield made
    await made.close()
    await running.close()


async def test_reads_an_object_with_its_credentials(api: Api, server: Server) -> None:
    server.answers = [(200, {"metadata": {"name": "x"}})]
    assert await api.get(PLACE) == {"metadata": {"name": "x"}}
    (request,) = server.requests
    assert (request.method, request.path, request.authorization) == ("GET", PATH, "Bearer secret")


async def test_an_object_that_is_not_there_is_none(api: Api, server: Server) -> None:
    server.answers = [(404, {"kind": "Status", "reason": "NotFound", "message": "not found"})]
    assert await api.get(PLACE) is None


async def test_reads_a_list_page_by_page(api: Api, server: Server) -> None:
    server.answers = [
        (200, {"metadata": {"continue": "token"}, "items": [{"n": 1}]}),
        (200, {"metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]}),
    ]
    assert await api.list_all("Pod", "prod", "a=1,b=2") == ([{"n": 1}, {"n": 2}], "7")
    first, second = server.requests
    assert first.query == {"labelSelector": "a=1,b=2", "limit": "500"}
    assert second.query["continue"] == "token"


async def test_reads_the_events_of_a_watch_until_it_ends(api: Api, server: Server) -> None:
    lines = '{"type": "ADDED", "object": {"n": 1}}\n{"type": "BOOKMARK", "object": {"n": 2}}\n'
    server.answers = [(200, lines)]
    events = [event async for event in api.watch("Pod", None, "a=1", "7")]
    assert [(event["type"], event["object"]["n"]) for event in events] == [("ADDED", 1), ("BOOKMARK", 2)]
    (request,) = server.requests
    assert request.path == "/api/v1/pods"
    assert request.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "labelSelector": "a=1",
        "resourceVersion": "7",
        "timeoutSeconds": "300",
    }


async def test_a_watch_that_is_cut_inside_an_event_is_an_error(api: Api, server: Server) -> None:
    server.answers = [(200, '{"type": "ADDED", "object": {"n": 1}}\n{"type": "MODI')]
    watching = api.watch("Pod", None, "a=1", "7")
    assert (await anext(watching))["object"] == {"n": 1}
    with pytest.raises(ApiError, match="cannot be read"):
        await anext(watching)


async def test_a_watch_that_is_refused_says_why(api: Api, server: Server) -> None:
    server.answers = [(410, {"kind": "Status", "reason": "Expired", "message": "too old"})]
    with pytest.raises(ApiError, match="too old") as raised:
        await anext(api.watch("Pod", None, "a=1", "7"))
    assert raised.value.status == 410


async def test_knows_whether_a_resource_is_served(api: Api, server: Server) -> None:
    server.answers = [
        (404, {"kind": "Status", "reason": "NotFound", "message": "no such group"}),
        (200, {"resources": [{"name": "others"}]}),
        (200, {"resources": [{"name": "inferenceservices"}]}),
    ]
    asked = [await api.is_served("serving.tidemill.dev/v1alpha1", "inferenceservices") for _ in range(3)]
    assert asked == [False, False, True]


async def test_asks_for_metadata_alone(api: Api, server: Server) -> None:
    server.answers = [(200, {"metadata": {"uid": "u"}})]
    assert await api.get_metadata(PLACE) == {"metadata": {"uid": "u"}}


async def test_applies_server_side_as_the_operator(api: Api, server: Server) -> None:
    server.answers = [(200, MANIFEST), (200, MANIFEST)]
    await api.apply(MANIFEST)
    await api.apply_status(MANIFEST)
    whole, status = server.requests
    assert (whole.method, whole.path, whole.content_type) == ("PATCH", PATH, "application/apply-patch+yaml")
    assert whole.query == {"fieldManager": "tidemill-operator", "force": "true", "fieldValidation": "Strict"}
    assert whole.body == MANIFEST
    assert status.path == f"{PATH}/status"


async def test_deletes_only_what_was_seen(api: Api, server: Server) -> None:
    server.answers = [(200, {})]
    await api.delete(PLACE, {"uid": "u"})
    (request,) = server.requests
    assert request.method == "DELETE"
    assert request.body["preconditions"] == {"uid": "u"}
    assert request.body["propagationPolicy"] == "Background"


async def test_deleting_what_is_gone_is_no_error(api: Api, server: Server) -> None:
    server.answers = [(404, {"reason": "NotFound"})]
    await api.delete(PLACE, {"uid": "u"})


@pytest.mark.parametrize(
    ("status", "answer", "is_refusal", "words"),
    [
        (403, {"reason": "Forbidden", "message": "exceeded quota"}, True, "exceeded quota"),
        (422, {"reason": "Invalid", "message": "spec.replicas"}, True, "spec.replicas"),
        (409, {"reason": "Conflict", "message": "changed"}, False, "changed"),
        (503, "<html>try later</html>", False, "try later"),
    ],
)
async def test_an_error_keeps_the_servers_words(
    api: Api, server: Server, status: int, answer: object, is_refusal: bool, words: str
) -> None:
    server.answers = [(status, answer)]
    with pytest.raises(ApiError, match=words) as raised:
        await api.apply(MANIFEST)
    assert (raised.value.status, raised.value.is_refusal) == (status, is_refusal)


@pytest.mark.parametrize("answer", ["", "<html>sign in</html>", [1]])
async def test_a_good_status_without_an_object_is_no_answer(api: Api, server: Server, answer: object) -> None:
    server.answers = [(200, answer)]
    with pytest.raises(ApiError) as error:
        await api.get_metadata(PLACE)
    assert (error.value.status, error.value.reason) == (0, "BadAnswer")


async def test_no_answer_is_an_error_too() -> None:
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:9"
    api = Api(ApiClient(configuration=configuration))
    with pytest.raises(ApiError) as raised:
        await api.get(PLACE)
    assert raised.value.status == 0
    await api.close()


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: sesame}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


async def test_watches_and_requests_use_the_same_credentials(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    configuration = await load_configuration()
    info = await connection()
    assert (configuration.host, info.server) == ("https://192.0.2.1:6443", "https://192.0.2.1:6443")
    assert info.token == "sesame"
    assert configuration.api_key["BearerToken"] == "Bearer sesame"
    assert info.insecure


async def test_a_missing_kubeconfig_is_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(OperatorError, match="cannot tell how to reach the Kubernetes API"):
        await load_configuration()
