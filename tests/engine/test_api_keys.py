from __future__ import annotations

from pathlib import Path

import pytest

from tidemill_engine.api.keys import ApiKeys, Bearer, gateway_token, parse_keys
from tidemill_engine.api.protocol.fields import Fields
from tidemill_engine.api.protocol.terms import ServiceTerms, parse_terms
from tidemill_engine.api.token_file import TokenFile
from tidemill_engine.errors import InvalidConfig, InvalidRequest


def test_a_key_of_the_file_belongs_to_its_tenant_and_a_star_makes_its_bearer_trusted(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# people\nalice=sk-a\n\n bob = sk=b \n*=sk-gateway\n")
    keys = ApiKeys("sk-own", path)
    assert keys.bearer("sk-a") == Bearer(tenant="alice")
    assert keys.bearer("sk=b") == Bearer(tenant="bob")
    assert keys.bearer("sk-gateway") == Bearer(is_trusted=True)
    assert keys.bearer("sk-own") == Bearer()
    for wrong in ("", "sk-", "alice", "sk-aa", "\udcff"):
        assert keys.bearer(wrong) is None


def test_without_any_key_everybody_may_ask() -> None:
    assert ApiKeys(None, None).bearer("") == Bearer()


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("")
    assert ApiKeys(None, path).bearer("") is None


def test_the_file_is_read_again_when_it_changes_and_no_key_outlives_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice=one\n")
    keys = ApiKeys(None, path)
    assert keys.bearer("one") is not None
    path.write_text("alice=another\n")
    assert keys.bearer("one") is None
    assert keys.bearer("another") is not None
    path.write_text("alice=another\nnonsense, still longer\n")
    assert keys.bearer("another") is not None, "a bad line changes nothing"
    path.unlink()
    assert keys.bearer("another") is None


@pytest.mark.parametrize(
    "text",
    ["secret", "=secret", "alice=", "a\tb=secret", "x" * 129 + "=secret", "alice=secret\nbob=secret"],
)
def test_a_bad_line_is_named_by_its_number_and_never_shown(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"line \d of the API keys file") as error:
        parse_keys(text)
    assert "secret" not in error.value.message


def test_a_missing_file_is_a_reason_not_to_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="can't be read"):
        ApiKeys(None, tmp_path / "missing").load()


HEADERS = {
    "x-tidemill-tenant": "alice",
    "x-tidemill-priority": "-3",
    "x-tidemill-slo-ttft-ms": "1500",
    "x-tidemill-slo-itl-ms": "80",
}


@pytest.mark.parametrize(
    ("sentence", "tenant", "is_trusted", "expected"),
    [
        ("a stranger names neither tenant nor class", "", False, ("", 0)),
        ("a trusted sender names both", "", True, ("alice", -3)),
        ("the key's tenant wins over the header", "bob", True, ("bob", -3)),
        ("a tenant with a key of its own has no class of its own", "bob", False, ("bob", 0)),
    ],
)
def test_who_may_say_what(sentence: str, tenant: str, is_trusted: bool, expected: tuple[str, int]) -> None:
    terms = parse_terms(Fields({}), HEADERS, tenant=tenant, is_trusted=is_trusted)
    assert (terms.tenant, terms.priority) == expected, sentence
    assert (terms.ttft_slo_seconds, terms.itl_slo_seconds) == (1.5, 0.08)


def test_the_body_s_latencies_win_over_the_headers() -> None:
    fields = Fields({"slo": {"ttft_ms": 500, "itl_ms": None}})
    terms = parse_terms(fields, HEADERS, tenant="", is_trusted=False)
    assert (terms.ttft_slo_seconds, terms.itl_slo_seconds) == (0.5, 0.08)


def test_nothing_said_means_no_tenant_no_class_and_no_slo() -> None:
    assert parse_terms(Fields({}), {}, tenant="", is_trusted=True) == ServiceTerms()


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        ({"slo": 5}, {}, "slo"),
        ({"slo": {"ttft_ms": 0}}, {}, "slo.ttft_ms"),
        ({"slo": {"itl_ms": "fast"}}, {}, "slo.itl_ms"),
        ({"slo": {"itl_ms": 1e12}}, {}, "slo.itl_ms"),
        ({}, {"x-tidemill-slo-ttft-ms": "nan"}, "x-tidemill-slo-ttft-ms"),
        ({}, {"x-tidemill-slo-itl-ms": "soon"}, "x-tidemill-slo-itl-ms"),
        ({}, {"x-tidemill-priority": "high"}, "x-tidemill-priority"),
        ({}, {"x-tidemill-priority": "9999999"}, "x-tidemill-priority"),
        ({}, {"x-tidemill-tenant": "x" * 129}, "x-tidemill-tenant"),
        ({}, {"x-tidemill-weight": "0"}, "x-tidemill-weight"),
        ({}, {"x-tidemill-weight": "much"}, "x-tidemill-weight"),
    ],
)
def test_bad_terms_are_refused_by_name(body: dict[str, object], headers: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_terms(Fields(body), headers, tenant="", is_trusted=True)
    assert error.value.param == param


def test_a_gateway_is_known_by_a_token_derived_from_the_admin_token_even_where_no_key_is_wanted(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text("admin-secret")
    for keys in (ApiKeys(None, None, TokenFile(file)), ApiKeys("sk-own", None, TokenFile(file))):
        assert keys.bearer(gateway_token("admin-secret")) == Bearer(is_trusted=True)
        assert keys.bearer("admin-secret") != Bearer(is_trusted=True)
    assert ApiKeys("sk-own", None, TokenFile(file)).bearer("wrong") is None
    assert ApiKeys(None, None, TokenFile(file)).bearer("wrong") == Bearer()
    file.write_text("another-admin-secret")
    assert ApiKeys("sk-own", None, TokenFile(file)).bearer(gateway_token("admin-secret")) is None


def test_without_an_admin_token_nobody_is_a_gateway(tmp_path: Path) -> None:
    missing = TokenFile(tmp_path / "missing")
    assert ApiKeys("sk-own", None, missing).bearer(gateway_token("")) is None
    assert ApiKeys("sk-own", None, None).bearer(gateway_token("")) is None
