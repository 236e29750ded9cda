"""Who asks, and what the engine is told about it."""

import hmac
import json
from base64 import b64encode
from typing import Any

import pytest

from tidemill_gateway.caller import Caller, Denied, engine_headers, identify
from tidemill_gateway.keys import KeyRing, bearer_token, parse_key_rings
from tidemill_gateway.service_spec import Routing, TenantPolicy

SALT = bytes(range(16))
LOCKED = Routing(needs_key=True, tenants=(TenantPolicy(name="red", weight=3, priority=5),))


def ring(**keys: list[str]) -> KeyRing:
    hashes = {
        tenant: [hmac.new(SALT, key.encode(), "sha256").hexdigest() for key in found]
        for tenant, found in keys.items()
    }
    content = json.dumps({"salt": SALT.hex(), "keys": hashes, "engineToken": "engine-token"}).encode()
    rings = parse_key_rings({"team-a.chat": b64encode(content).decode()})
    return rings.by_service[("team-a", "chat")]


def caller_of(found: Caller | Denied) -> Caller:
    assert isinstance(found, Caller)
    return found


def test_a_key_says_which_tenant_asks_and_what_it_may() -> None:
    found = caller_of(identify(LOCKED, ring(red=["k1"], blue=["k2"]), "Bearer k1"))
    assert (found.policy.name, found.policy.weight, found.engine_token) == ("red", 3, "engine-token")
    assert caller_of(identify(LOCKED, ring(red=["k1"], blue=["k2"]), "Bearer k2")).policy.weight == 1


def test_a_tenant_may_have_two_keys_while_one_replaces_the_other() -> None:
    both = ring(red=["old", "new"])
    assert {both.tenant_of("old"), both.tenant_of("new")} == {"red"}


@pytest.mark.parametrize("authorization", ["", "Bearer ", "Bearer wrong", "Basic k1", "k1", "Bearer k1 k1"])
def test_without_a_right_key_nobody_is_let_in(authorization: str) -> None:
    assert identify(LOCKED, ring(red=["k1"]), authorization) is Denied.WRONG_KEY


def test_a_service_that_wants_keys_is_closed_until_there_are_some() -> None:
    assert identify(LOCKED, None, "Bearer k1") is Denied.NO_KEYS_YET
    assert identify(LOCKED, ring(), "Bearer k1") is Denied.WRONG_KEY


def test_without_keys_everybody_is_nobody_in_particular() -> None:
    assert caller_of(identify(Routing(), None, "Bearer anything")).policy.name == ""


def headers(asked: dict[str, str], routing: Routing = LOCKED, **policy: Any) -> dict[str, str]:
    caller = Caller(policy=TenantPolicy(**{"name": "red", "priority": 5, **policy}), engine_token="token")
    return engine_headers(caller, routing, asked)


def test_the_engine_learns_the_tenant_from_the_gateway_and_not_from_the_client() -> None:
    given = headers({"x-tidemill-tenant": "forged"})
    assert given["x-tidemill-tenant"] == "red"
    assert given["Authorization"] == "Bearer token"


@pytest.mark.parametrize(
    ("asked", "priority"), [("9", "9"), ("5", "5"), ("1", "5"), ("-7", "5"), ("urgent", "5"), ("9" * 50, "5")]
)
def test_a_client_may_ask_for_a_later_class_than_its_tenants_and_for_no_earlier_one(
    asked: str, priority: str
) -> None:
    assert headers({"x-tidemill-priority": asked})["x-tidemill-priority"] == priority


@pytest.mark.parametrize(("weight", "told"), [(3, "3"), (1, None)])
def test_the_engine_learns_a_tenants_share_where_it_is_not_one(weight: int, told: str | None) -> None:
    caller = Caller(policy=TenantPolicy(name="red", weight=weight), engine_token="token")
    given = engine_headers(caller, LOCKED, {"x-tidemill-weight": "1000"})
    assert given.get("x-tidemill-weight") == told


def test_an_slo_is_passed_on_and_the_services_own_is_the_default() -> None:
    routing = Routing(needs_key=True, slo_ttft_ms=2000, slo_itl_ms=100)
    given = headers({"x-tidemill-slo-ttft-ms": "500"}, routing)
    assert given["x-tidemill-slo-ttft-ms"] == "500"
    assert given["x-tidemill-slo-itl-ms"] == "100"


def test_without_keys_the_client_speaks_for_itself_and_has_no_class() -> None:
    nobody = Caller(policy=TenantPolicy(name=""))
    assert engine_headers(nobody, Routing(), {"x-tidemill-priority": "-5"}) == {}


def test_what_a_key_ring_knows_is_not_shown() -> None:
    assert SALT.hex() not in repr(ring(red=["k1"]))
    assert "engine-token" not in repr(ring(red=["k1"]))


def test_bearer_tokens_are_read_in_any_case() -> None:
    assert bearer_token("bearer  abc ") == "abc"
    assert bearer_token("Basic abc") == ""
