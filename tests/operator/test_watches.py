"""Which events ask for a look at which services."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from operator_builders import make_service
from tidemill_operator import names
from tidemill_operator.claims import Claims
from tidemill_operator.keys import Key
from tidemill_operator.observed import LostClaim
from tidemill_operator.views import gateway_views
from tidemill_operator.watches import EventRouter, Scope, run_watches

CHAT, OTHER = Key("prod", "chat"), Key("prod", "other")
SYSTEM = "tidemill-system"
GATEWAY_LABELS = {names.LABEL_APP_NAME: "tidemill", names.LABEL_APP_COMPONENT: "gateway"}


class Asked:
    """A router and the keys that it asked for since they were last taken."""

    def __init__(self, namespaces: tuple[str, ...] = ()) -> None:
        self._keys: list[Key] = []
        self.claims = Claims()
        self.scope = Scope(
            operator_namespace=SYSTEM,
            gateway_selector=names.DEFAULT_GATEWAY_SELECTOR,
            namespaces=namespaces,
        )
        self.router = EventRouter(self._keys.append, self.claims, self.scope)

    def take(self) -> list[Key]:
        keys = list(self._keys)
        self._keys.clear()
        return keys


def seen(service: dict[str, Any], **changes: Any) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "False"}]}
    return {**service, "status": status, **changes}


@pytest.fixture
def asked() -> Asked:
    made = Asked()
    made.router.on_service(None, seen(make_service()))
    assert made.take() == [CHAT]
    return made


def gateway(
    *, is_ready: bool = True, ip: str = "10.0.0.1", is_leaving: bool = False, phase: str = "Running"
) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    metadata: dict[str, Any] = {"name": "gateway-0", "namespace": SYSTEM, "labels": GATEWAY_LABELS}
    if is_leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {},
        "status": {"phase": phase, "podIP": ip, "conditions": conditions},
    }


def test_the_echo_of_a_status_write_asks_for_nothing(asked: Asked) -> None:
    written = {"conditions": [{"type": "Ready", "status": "True"}], "readyReplicas": 2}
    asked.router.on_service("MODIFIED", seen(make_service(), status=written))
    assert asked.take() == []


@pytest.mark.parametrize(
    "service",
    [
        seen(make_service(generation=4)),
        seen(make_service(uid="another")),
        seen(make_service(annotations={names.ANNOTATION_RESTARTED_AT: "now"})),
        seen(make_service(), status={"conditions": [1], "activation": {"requestTime": "now"}}),
        make_service(),
    ],
    ids=["spec", "replaced", "restart", "activation", "status lost"],
)
def test_what_someone_else_changed_is_looked_at(asked: Asked, service: dict[str, Any]) -> None:
    asked.router.on_service("MODIFIED", service)
    assert asked.take() == [CHAT]


def test_a_child_asks_for_its_service(asked: Asked) -> None:
    asked.router.on_child({"metadata": {"namespace": "prod", "labels": {names.LABEL_SERVICE: "chat"}}})
    assert asked.take() == [CHAT]


@pytest.mark.parametrize(
    "metadata", [{"namespace": "prod"}, {"namespace": "x", "labels": {names.LABEL_SERVICE: "chat"}}]
)
def test_what_belongs_to_no_known_service_asks_for_nothing(asked: Asked, metadata: dict[str, Any]) -> None:
    asked.router.on_child({"metadata": metadata})
    assert asked.take() == []


def test_a_deleted_service_is_looked_at_a_last_time(asked: Asked) -> None:
    asked.router.on_service("DELETED", seen(make_service()))
    assert asked.take() == [CHAT]
    asked.router.on_child({"metadata": {"namespace": "prod", "labels": {names.LABEL_SERVICE: "chat"}}})
    assert asked.take() == []


def test_a_gateway_that_comes_or_goes_concerns_everyone(asked: Asked) -> None:
    asked.router.on_gateways([gateway(is_ready=False)])
    assert asked.take() == []
    asked.router.on_gateways([gateway()])
    assert asked.take() == [CHAT]
    asked.router.on_gateways([gateway()])
    assert asked.take() == []
    asked.router.on_gateways([gateway(ip="10.0.0.2")])
    assert asked.take() == [CHAT]
    asked.router.on_gateways([gateway(ip="10.0.0.2", is_leaving=True)])
    assert asked.take() == [CHAT]
    asked.router.on_gateways([gateway(ip="10.0.0.2", is_leaving=True, is_ready=False)])
    assert asked.take() == []
    asked.router.on_gateways([gateway(ip="10.0.0.2", is_leaving=True, is_ready=False, phase="Succeeded")])
    assert asked.take() == [CHAT]


def test_a_gateway_that_leaves_gets_no_client_and_is_asked_what_it_still_holds() -> None:
    staying, leaving = gateway(), gateway(is_leaving=True, is_ready=False)
    assert [len(found) for found in gateway_views([staying])] == [1, 0]
    assert [len(found) for found in gateway_views([leaving])] == [0, 1]
    assert [len(found) for found in gateway_views([staying, leaving])] == [1, 1]


def test_services_out_of_scope_are_left_alone() -> None:
    asked = Asked(namespaces=("else",))
    asked.router.on_service(None, make_service())
    assert asked.take() == []


def test_children_are_asked_for_by_our_label_and_in_the_namespaces_that_are_looked_after() -> None:
    everywhere, some = Asked().scope.sources(), Asked(namespaces=("a", "b")).scope.sources()
    assert {source.namespace for source in everywhere} == {None, SYSTEM}
    assert {source.namespace for source in some} == {"a", "b", SYSTEM}
    for source in some:
        is_gateway = source.namespace == SYSTEM
        assert source.selector == (names.DEFAULT_GATEWAY_SELECTOR if is_gateway else names.LABEL_SERVICE)
    assert "Secret" not in {source.kind for source in some}


def test_the_oldest_service_keeps_a_model_name_and_the_others_are_told(asked: Asked) -> None:
    rival = make_service({"model": {"uri": "sim://x", "servedNames": ["chat"]}}, name="other")
    rival["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    asked.router.on_service(None, seen(rival))
    assert set(asked.take()) == {CHAT, OTHER}
    assert asked.claims.lost(OTHER) == (LostClaim(what="chat", owner="prod/chat"),)
    assert asked.claims.lost(CHAT) == ()
    asked.router.on_service("DELETED", seen(make_service()))
    assert set(asked.take()) == {CHAT, OTHER}
    assert asked.claims.lost(OTHER) == ()


def test_a_service_whose_end_no_event_told_gives_its_name_to_the_next(asked: Asked) -> None:
    rival = make_service({"model": {"uri": "sim://x", "servedNames": ["chat"]}}, name="other")
    rival["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    asked.router.on_service(None, seen(rival))
    asked.take()
    asked.router.on_gone(CHAT)
    assert asked.take() == [OTHER]
    assert asked.claims.lost(OTHER) == ()


def test_a_service_that_leaves_gives_its_name_away_and_never_takes_it_back(asked: Asked) -> None:
    rival = make_service({"model": {"uri": "sim://x", "servedNames": ["chat"]}}, name="other")
    rival["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    asked.router.on_service(None, seen(rival))
    asked.take()
    leaving = seen(make_service())
    asked.router.on_leaving(CHAT, leaving["metadata"]["uid"])
    assert asked.take() == [OTHER]
    asked.router.on_service("MODIFIED", leaving)
    assert asked.claims.lost(OTHER) == ()
    asked.router.on_service("DELETED", leaving)
    asked.router.on_service("ADDED", seen(make_service(uid="made again")))
    assert asked.claims.lost(OTHER) == (LostClaim(what="chat", owner="prod/chat"),)


def test_a_name_that_is_given_up_is_free_for_others(asked: Asked) -> None:
    rival = make_service({"model": {"uri": "sim://x", "servedNames": ["chat"]}}, name="other")
    rival["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    asked.router.on_service(None, seen(rival))
    asked.take()
    renamed = make_service({"model": {"uri": "sim://demo", "servedNames": ["talk"]}}, generation=4)
    asked.router.on_service("MODIFIED", seen(renamed))
    assert set(asked.take()) == {CHAT, OTHER}
    assert asked.claims.lost(OTHER) == ()


def test_the_oldest_service_keeps_a_host() -> None:
    asked = Asked()
    ingress = {"routing": {"ingress": {"host": "chat.example.com"}}}
    for name, created in (("other", "2026-01-02T00:00:00Z"), ("chat", "2026-01-01T00:00:00Z")):
        service = make_service(ingress, name=name)
        service["metadata"]["creationTimestamp"] = created
        asked.router.on_service(None, seen(service))
    lost = LostClaim(what="chat.example.com", owner="prod/chat", is_host=True)
    assert asked.claims.lost(OTHER) == (lost,)
    assert asked.claims.lost(CHAT) == ()


async def test_a_watch_that_fails_ends_alone_and_leaves_the_work_that_it_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working: list[asyncio.Task[None]] = []
    idle = asyncio.Event()

    async def wait_for_ever() -> None:
        await idle.wait()

    async def fail() -> None:
        working.append(asyncio.create_task(wait_for_ever()))
        raise OSError("410: gone")

    async def spawn_tasks(**_: Any) -> list[asyncio.Task[None]]:
        started.extend((asyncio.create_task(fail()), asyncio.create_task(wait_for_ever())))
        return started

    started: list[asyncio.Task[None]] = []
    monkeypatch.setattr("kopf.spawn_tasks", spawn_tasks)
    asked = Asked()
    with pytest.raises(OSError, match="gone"):
        await run_watches(asked.router, asked.scope, on_started=lambda: None)
    assert all(task.done() for task in started)
    assert not working[0].done()
    idle.set()
    await working[0]
