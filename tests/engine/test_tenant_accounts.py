from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill_engine.tenant_accounts import MAX_CANDIDATES, OTHER, TenantAccounts, TenantUsage

NAMES = ["", "default", "other", *(f"t{number}" for number in range(30))]


def usage(tokens: int) -> TenantUsage:
    return TenantUsage(requests=1, prompt_tokens=tokens, output_tokens=tokens)


def test_each_tenant_has_an_account_and_the_nameless_one_is_called_default() -> None:
    accounts = TenantAccounts()
    for tenant, tokens in [("a", 5), ("", 3), ("a", 2)]:
        accounts.add(tenant, usage(tokens))
    assert {name: account.prompt_tokens for name, account in accounts.shown().items()} == {
        "a": 7,
        "default": 3,
    }


def test_tenants_beyond_the_number_shown_are_counted_together() -> None:
    accounts = TenantAccounts(max_shown=2)
    for tenant, tokens in [("a", 50), ("b", 50), ("c", 5), ("d", 6)]:
        accounts.add(tenant, usage(tokens))
    shown = accounts.shown()
    assert set(shown) == {"a", "b", OTHER}
    assert (shown[OTHER].requests, shown[OTHER].prompt_tokens) == (2, 11)


def test_tenants_that_bear_the_name_of_a_label_are_counted_under_it() -> None:
    accounts = TenantAccounts(max_shown=1)
    for tenant, tokens in [("", 50), ("default", 7), ("other", 5), ("small", 2)]:
        accounts.add(tenant, usage(tokens))
    assert {name: account.prompt_tokens for name, account in accounts.shown().items()} == {
        "default": 57,
        OTHER: 7,
    }


def test_a_tenant_that_outgrows_the_least_one_shown_takes_its_place() -> None:
    accounts = TenantAccounts(max_shown=2)
    for tenant, tokens in [("a", 50), ("small", 5)]:
        accounts.add(tenant, usage(tokens))
    for _ in range(4):
        accounts.add("grows", usage(3))
    assert set(accounts.shown()) == {"a", "grows", OTHER}
    assert accounts.shown()[OTHER].requests >= 1


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 100)), max_size=200))
def test_no_token_is_lost_every_series_only_grows_and_their_number_is_bounded(
    steps: list[tuple[str, int]],
) -> None:
    accounts = TenantAccounts(max_shown=3)
    before: dict[str, int] = {}
    for tenant, tokens in steps:
        accounts.add(tenant, usage(tokens))
        now = {name: account.tokens for name, account in accounts.shown().items()}
        assert len(now) <= 4
        for name in now.keys() & before.keys():
            assert now[name] >= before[name]
        before = now
    assert sum(before.values()) == sum(2 * tokens for _, tokens in steps)


def test_a_million_names_leave_a_bounded_memory() -> None:
    accounts = TenantAccounts(max_shown=2)
    for number in range(MAX_CANDIDATES * 3):
        accounts.add(f"t{number}", usage(1))
    assert len(accounts._candidates) <= MAX_CANDIDATES
    assert len(accounts.shown()) <= 3
