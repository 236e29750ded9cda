"""API keys on their way to the gateways: hashed, kept in step, never shown, never lost by a stumble."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill_engine.api.keys import ApiKeys, Bearer, gateway_token
from tidemill_engine.api.token_file import TokenFile
from tidemill_gateway.caller import Caller, Denied, engine_headers, identify
from tidemill_gateway.keys import KeyRing, bearer_token, parse_key_rings
from tidemill_gateway.service_spec import Routing
from tidemill_operator import key_projector, names
from tidemill_operator.api import Place
from tidemill_operator.errors import ApiError
from tidemill_operator.key_projection import EngineTokens, engine_token, project
from tidemill_operator.key_projector import KeyProjector
from tidemill_operator.keys import Key

Object = dict[str, Any]
CHAT = Key("team-a", "chat")
HOME = Place(kind="Secret", namespace="tidemill-system", name="tidemill-gateway-keys")


def encoded(**values: str) -> dict[str, str]:
    return {name.replace("_", "-"): b64encode(value.encode()).decode() for name, value in values.items()}


def service(secret: str | None = "chat-keys") -> Object:
    auth = {"auth": {"secretRef": {"name": secret}}} if secret else {}
    return {"metadata": {"namespace": "team-a", "name": "chat", "uid": "u"}, "spec": {"routing": auth}}


class FakeCluster:
    """Secrets and services by place; counts writes."""

    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.writes: list[Object] = []
        self.told: list[str] = []
        self.asked: list[Key] = []
        self.failing: set[str] = set()
        self.on_read: Callable[[], object] = lambda: None
        self.put(names.KIND, "chat", service())
        self.put("Secret", "chat-admin-token", {"data": encoded(token="admin")})
        self.put("Secret", "chat-keys", {"data": encoded(red="key-1", blue="key-2\nkey-3\n")})

    def put(self, kind: str, name: str, obj: Object) -> None:
        self.objects[Place(kind=kind, namespace="team-a", name=name)] = obj

    def drop(self, kind: str, name: str) -> None:
        del self.objects[Place(kind=kind, namespace="team-a", name=name)]

    async def get(self, place: Place) -> Object | None:
        if place.name in self.failing:
            raise ApiError(status=500, reason="Test", message="as the test wants", request="GET")
        self.on_read()
        return self.objects.get(place)

    async def create(self, manifest: Object, *, kind: str) -> Object:
        self.writes.append(manifest)
        self.objects[HOME] = manifest
        return manifest

    async def merge(self, place: Place, patch: Object) -> Object:
        self.writes.append(patch)
        data = {**(self.objects[place].get("data") or {}), **patch["data"]}
        self.objects[place] = {"data": {name: value for name, value in data.items() if value is not None}}
        return self.objects[place]

    async def tell(self, service: Object, message: str) -> None:
        self.told.append(message)

    def projector(self) -> KeyProjector:
        made = KeyProjector(self, HOME, self.tell, self.asked.append)
        made.note(CHAT, self.objects.get(Place(kind=names.KIND, namespace="team-a", name="chat")))
        return made

    def ring(self) -> KeyRing | None:
        return parse_key_rings(self.objects[HOME].get("data") or {}).by_service.get(("team-a", "chat"))


async def projected() -> FakeCluster:
    cluster = FakeCluster()
    cluster.objects[HOME] = {}
    await cluster.projector().project_all()
    return cluster


async def test_what_the_operator_writes_the_gateway_reads_and_the_engine_believes() -> None:
    cluster = await projected()
    ring = cluster.ring()
    assert ring is not None
    assert {key: ring.tenant_of(key) for key in ("key-1", "key-2", "key-3", "key-4")} == {
        "key-1": "red",
        "key-2": "blue",
        "key-3": "blue",
        "key-4": None,
    }
    assert ring.engine_token == engine_token("admin") == gateway_token("admin")


async def test_gateways_give_the_former_token_too_to_engines_that_do_not_know_the_new_one(
    tmp_path: Path,
) -> None:
    cluster = await projected()
    before = cluster.objects[HOME]["data"]["team-a.chat"]
    assert "formerEngineToken" not in b64decode(before).decode()
    cluster.put(
        "Secret",
        "chat-admin-token",
        {"data": encoded(token="new") | {"former-token": encoded(a="admin")["a"]}},
    )
    await cluster.projector().project_all()
    caller = identify(Routing(needs_key=True), cluster.ring(), "Bearer key-1")
    assert isinstance(caller, Caller)
    given = engine_headers(caller, Routing(needs_key=True), {"x-tidemill-former-token": "forged"})
    token = tmp_path / "token"
    for known, is_believed in (("admin", True), ("new", True), ("another", False)):
        token.write_text(known)
        keys = ApiKeys(None, None, TokenFile(token))
        bearer = keys.bearer(bearer_token(given["Authorization"]), given["x-tidemill-former-token"])
        assert bearer == Bearer(is_trusted=is_believed), known


async def test_gateways_keep_the_token_that_engines_know_while_the_admin_secret_is_made_anew() -> None:
    cluster = await projected()
    seen = []
    for made in (None, encoded(token="new"), None, encoded(token="newer")):
        cluster.drop("Secret", "chat-admin-token")
        if made is not None:
            cluster.put("Secret", "chat-admin-token", {"data": made})
        for _ in range(2):
            await cluster.projector().project_all()
        ring = cluster.ring()
        assert ring is not None
        seen.append((ring.engine_token, ring.former_engine_token))
        if made is None:
            cluster.put("Secret", "chat-admin-token", {})
    admin, new, newer = (engine_token(token) for token in ("admin", "new", "newer"))
    assert seen == [(admin, ""), (new, admin), (new, admin), (newer, new)]


async def test_no_key_and_no_admin_token_stands_in_the_projection() -> None:
    cluster = await projected()
    shown = b64decode(cluster.objects[HOME]["data"]["team-a.chat"]).decode()
    assert not any(secret in shown for secret in ("key-1", "key-2", "key-3", '"admin"'))
    assert json.loads(shown)["salt"]


async def test_the_same_keys_are_written_once() -> None:
    cluster = await projected()
    await cluster.projector().project_all()
    assert len(cluster.writes) == 1


async def test_a_key_that_is_replaced_works_and_the_old_one_no_longer() -> None:
    cluster = await projected()
    cluster.put("Secret", "chat-keys", {"data": encoded(red="key-9")})
    await cluster.projector().project_all()
    ring = cluster.ring()
    assert ring is not None
    assert (ring.tenant_of("key-9"), ring.tenant_of("key-1")) == ("red", None)


async def test_without_its_secret_a_service_lets_nobody_in_and_says_so() -> None:
    cluster = await projected()
    cluster.drop("Secret", "chat-keys")
    await cluster.projector().project_all()
    assert identify(Routing(needs_key=True), cluster.ring(), "Bearer key-1") is Denied.NO_KEYS_YET
    assert "does not exist" in cluster.told[0]


async def test_status_hears_once_that_nobody_is_let_in_and_once_that_somebody_is() -> None:
    cluster = FakeCluster()
    cluster.objects[HOME] = {}
    projector = cluster.projector()
    await projector.project_all()
    assert (projector.problem_of(CHAT), cluster.asked) == ("", [])
    cluster.put("Secret", "chat-keys", {"data": {}})
    for _ in range(2):
        await projector.project_all()
    assert "holds no keys: nobody is let in" in projector.problem_of(CHAT)
    cluster.drop("Secret", "chat-keys")
    await projector.project_all()
    assert "does not exist" in projector.problem_of(CHAT)
    cluster.put("Secret", "chat-keys", {"data": encoded(red="key-1", blue="")})
    await projector.project_all()
    assert (projector.problem_of(CHAT), cluster.asked) == ("", [CHAT] * 3)


async def test_what_was_found_of_a_secret_that_is_no_longer_named_is_not_kept() -> None:
    cluster = FakeCluster()
    cluster.objects[HOME] = {}
    cluster.drop("Secret", "chat-keys")
    projector = cluster.projector()
    round_of = asyncio.create_task(projector.project_all())
    cluster.on_read = lambda: projector.note(CHAT, service(secret=None))
    await round_of
    assert (projector.problem_of(CHAT), cluster.asked) == ("", [])


async def test_an_admin_secret_that_is_no_text_keeps_nobody_elses_keys_from_changing() -> None:
    cluster = await projected()
    cluster.put("Secret", "chat-admin-token", {"data": {"token": b64encode(b"\xff\xfe").decode()}})
    cluster.put("Secret", "chat-keys", {"data": encoded(red="key-9")})
    await cluster.projector().project_all()
    ring = cluster.ring()
    assert ring is not None
    assert ring.tenant_of("key-9") == "red"


async def test_a_fault_in_one_round_does_not_end_the_rounds(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    cluster.objects[HOME] = {}
    projector = cluster.projector()

    def fail_once() -> None:
        cluster.on_read = lambda: None
        projector.note(Key("team-a", "other"), service())  # what changes has the next round begin at once
        raise ValueError("as the test wants")

    cluster.on_read = fail_once
    rounds = asyncio.create_task(projector.run())
    while cluster.ring() is None:
        assert not rounds.done()
        await asyncio.sleep(0)
    rounds.cancel()
    assert "cannot project API keys" in caplog.text


async def test_gateways_learn_of_a_rotation_at_once_and_not_with_the_next_slow_round() -> None:
    cluster = await projected()
    projector = cluster.projector()
    rounds = asyncio.create_task(projector.run())
    await asyncio.sleep(0.05)
    cluster.put("Secret", "chat-admin-token", {"data": encoded(token="new")})
    projector.go_round()
    async with asyncio.timeout(key_projector.ROUND_SECONDS / 2):
        while (ring := cluster.ring()) is None or ring.engine_token != engine_token("new"):
            assert not rounds.done()
            await asyncio.sleep(0.01)
    rounds.cancel()
    assert ring.former_engine_token == engine_token("admin")


async def test_keys_that_are_taken_back_go_though_nobody_can_be_told_why() -> None:
    cluster = await projected()
    cluster.drop("Secret", "chat-keys")
    cluster.failing = {"chat"}
    await cluster.projector().project_all()
    assert cluster.ring() is None
    assert cluster.told == []


async def test_an_entry_goes_with_its_service_or_when_it_wants_no_keys_any_more() -> None:
    for after in (None, service(secret=None)):
        cluster = await projected()
        cluster.drop(names.KIND, "chat")
        if after is not None:
            cluster.put(names.KIND, "chat", after)
        await KeyProjector(cluster, HOME, cluster.tell, cluster.asked.append).project_all()
        assert cluster.ring() is None


async def test_an_operator_that_has_just_started_takes_no_entry_away() -> None:
    cluster = await projected()
    await KeyProjector(cluster, HOME, cluster.tell, cluster.asked.append).project_all()
    assert cluster.ring() is not None


@pytest.mark.parametrize("failing", ["chat-keys", "chat-admin-token", "chat"])
async def test_what_can_not_be_read_just_now_stays_as_it_was(failing: str) -> None:
    cluster = await projected()
    cluster.failing.add(failing)
    await cluster.projector().project_all()
    await KeyProjector(cluster, HOME, cluster.tell, cluster.asked.append).project_all()
    assert len(cluster.writes) == 1


async def test_the_projection_is_made_where_there_is_none() -> None:
    cluster = FakeCluster()
    await cluster.projector().project_all()
    assert cluster.ring() is not None


def test_two_tenants_can_not_share_a_key_and_the_message_does_not_show_it() -> None:
    found = project(encoded(blue="same", red="same"), tokens=EngineTokens(own="t"), salt=b"0" * 16)
    assert found.problems == ("red has a key that blue has, too",)
    ring = parse_key_rings({"a.b": found.entry}).by_service[("a", "b")]
    assert ring.tenant_of("same") == "blue"


@pytest.mark.parametrize(
    "data", [{}, encoded(red=""), encoded(red=" \n \n"), {"red": b64encode(b"\xff").decode()}]
)
def test_a_secret_without_keys_is_a_problem_and_lets_nobody_in(data: dict[str, str]) -> None:
    found = project(data, tokens=EngineTokens(), salt=b"0" * 16)
    assert found.problems
    ring = parse_key_rings({"a.b": found.entry}).by_service[("a", "b")]
    assert not isinstance(identify(Routing(needs_key=True), ring, "Bearer x"), Caller)
