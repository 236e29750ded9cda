"""The admin token's Secret over whole runs: made once, rotated when it is deleted, the former one kept."""

from __future__ import annotations

from typing import cast

import pytest

from operator_builders import make_service
from operator_fakes import KEY, FakeApi, make_reconciler
from reconcile_runs import HOST, converge, make_api
from tidemill_operator.api import Api
from tidemill_operator.cluster import Cluster
from tidemill_operator.queue import Again, Outcome


@pytest.fixture
def api() -> FakeApi:
    return make_api()


async def test_the_token_is_made_once(api: FakeApi) -> None:
    await converge(api, make_reconciler(api))
    secret = ("Secret", "prod", "chat-admin-token")
    token = api.objects[secret]["data"]["token"]
    assert len(token) > 40
    await converge(api, make_reconciler(api))
    assert api.objects[secret]["data"]["token"] == token


async def test_the_former_token_is_kept_when_the_secret_is_deleted_and_made_anew(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    cluster, service = reconciler.cluster, make_service(HOST)
    (first,) = (await cluster.observe(service)).admin_tokens
    api.remove(("Secret", "prod", "chat-admin-token"))
    cluster.admin_secrets.look_again(KEY)
    assert (await cluster.observe(service)).admin_tokens == (first,)
    await converge(api, reconciler)
    second, former = (await cluster.observe(service)).admin_tokens
    assert former == first != second


async def test_a_rotation_is_told_once_as_soon_as_the_new_token_is_read(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    told: list[str] = []
    cluster = Cluster(cast("Api", api), api.cache, lambda: told.append("rotated"))
    service = make_service(HOST)
    await cluster.observe(service)
    assert told == [], "a token that is read for the first time is no other one"
    api.remove(("Secret", "prod", "chat-admin-token"))
    cluster.admin_secrets.look_again(KEY)
    await cluster.observe(service)
    assert told == [], "there is none yet"
    await make_reconciler(api).run(KEY)
    for _ in range(3):
        await cluster.observe(service)
    assert told == ["rotated"]


async def test_the_run_that_makes_the_secret_is_followed_by_one_that_reads_its_token(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    api.remove(("Secret", "prod", "chat-admin-token"))
    reconciler.cluster.admin_secrets.look_again(KEY)
    assert isinstance(await reconciler.run(KEY), Again), "no watch shows the Secret"
    assert await reconciler.run(KEY) is Outcome.DONE


async def test_an_operator_that_has_begun_since_a_rotation_knows_the_former_token(api: FakeApi) -> None:
    reconciler = make_reconciler(api)
    await converge(api, reconciler)
    service = make_service(HOST)
    tokens = [(await reconciler.cluster.observe(service)).admin_tokens[0]]
    for _ in range(2):
        api.remove(("Secret", "prod", "chat-admin-token"))
        reconciler.cluster.admin_secrets.look_again(KEY)
        await converge(api, reconciler)
        tokens.append((await reconciler.cluster.observe(service)).admin_tokens[0])
    begun_since = make_reconciler(api).cluster
    assert (await begun_since.observe(service)).admin_tokens == (tokens[2], tokens[1])
